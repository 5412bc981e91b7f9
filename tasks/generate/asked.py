"""What was asked, as a name: the scope that many questions share, and the content key of each.

Whatever shapes an answer is part of its key, and nothing else: neither dataset, nor position, endpoint, or task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Scope:
    """What the answers of one folder have in common."""

    model: str
    revision: str
    dialect: str
    sampling: Mapping[str, Any]  # as sent, without the limit and the seed of each request
    provider_rules: Mapping[str, Any]  # as sent
    template_sha256: str
    extra_body: Mapping[str, Any]

    @cached_property
    def name(self) -> str:
        """The folder's name."""
        return hashlib.sha256(_canonical(asdict(self))).hexdigest()[:32]


def content_key(
    scope: Scope,
    *,
    max_tokens: int,
    seed: int | None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    prompt_ids: Sequence[int] | None = None,
) -> str:
    """Names an answer by all that was asked: messages and tools, or prompt ids, and what shapes the answer."""
    if (messages is None) == (prompt_ids is None):
        raise ValueError("an answer is named by its messages or by its prompt ids, by one of them")
    asked = {
        "scope": scope.name,
        "max_tokens": max_tokens,
        "seed": seed,
        "messages": messages,
        "tools": tools or None,
        "prompt_ids": None if prompt_ids is None else list(prompt_ids),
    }
    return hashlib.sha256(_canonical(asked)).hexdigest()


def _canonical(value: Any) -> bytes:
    """Canonical JSON in which 1 and 1.0 are the same number."""
    plain = json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return plain.encode("utf-8", "surrogatepass")


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {name: _whole(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_whole(inner) for inner in value]
    return value
