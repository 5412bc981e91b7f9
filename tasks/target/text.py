"""The target's tokenizer and chat template: messages in, exactly the ids that the served model would get out."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import TemplateRefused
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target.place import target_folder

_cache = threading.local()


def load_tokenizer(target: Shards, spec: TargetSpec) -> Any:
    """The target's tokenizer, one per thread (a fast tokenizer must not be used by two threads at once).

    Raises:
        TargetError: the target's files are missing or were changed.
    """
    loaded: dict[str, Any] = _cache.__dict__.setdefault("loaded", {})
    digest = target.digest()
    if digest not in loaded:
        from transformers import AutoTokenizer

        folder = str(target_folder(target, spec))
        loaded[digest] = AutoTokenizer.from_pretrained(folder, trust_remote_code=spec.trust_remote_code)
    return loaded[digest]


def render_prompt(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], switches: Mapping[str, bool | str]
) -> list[int]:
    """The ids of a conversation up to where the assistant's answer begins.

    The template writes the control tokens itself, so the tokenizer must not add them again.

    Raises:
        TemplateRefused: the chat template raised for these messages.
    """
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **switches)
    except (TemplateError, KeyError, TypeError, ValueError) as exc:
        raise TemplateRefused(f"the chat template refused the messages: {exc}") from exc
    return tokenizer.encode(text, add_special_tokens=False)
