"""What an answer says of itself, for the ledger: who made it, how many tokens, at what cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_QUANTIZATION = re.compile(r"^(?P<provider>.*\S)\s*\((?P<quantization>[a-z]+\d+|unknown)\)$")
_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,200})"')


@dataclass(frozen=True)
class Facts:
    """Null is what the answer does not say."""

    provider: str | None = None
    model: str | None = None
    quantization: str | None = None
    generation_id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


def facts_of(document: dict[str, Any]) -> Facts:
    """The facts of a body of any dialect, or of as much of it as came."""
    meta = _dict(document.get("meta_info"))
    usage = _dict(document.get("usage")) or meta
    provider, quantization = _who(_text(document.get("provider")))
    cost = usage.get("cost")
    return Facts(
        provider,
        _text(document.get("model")),
        _text(document.get("quantization")) or quantization,
        _text(document.get("id")) or _text(meta.get("id")),
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
    )


def facts_of_part(body: bytes) -> Facts:
    """The generation's id, if a body that broke off has it: what was billed can be asked for with it."""
    found = _ID.search(body)
    return Facts(generation_id=found.group(1).decode(errors="replace")) if found else Facts()


def _who(provider: str | None) -> tuple[str | None, str | None]:
    """A provider's name may end with its quantization: "OtherHost (fp4)"."""
    found = _QUANTIZATION.match(provider or "")
    return (found["provider"], found["quantization"]) if found else (provider, None)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
