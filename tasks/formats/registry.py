"""Every token format by name, bound to a tokenizer; and which one a tokenizer and its template belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from schemas.errors import TokenFormatError
from tasks.formats import deepseek, glm, harmony, kimi, minimax, plain, qwen
from tasks.formats.codec import Codec
from tasks.formats.format import TokenFormat

Factory = Callable[[Codec, Sequence[int] | None], TokenFormat]

# Each family's module gives FORMATS (its names, with what binds them) and recognise(codec, template_text), which is the
# name if both are of the family, and empty otherwise.
_MODULES = (kimi, qwen, deepseek, glm, minimax, harmony)
FORMATS: Mapping[str, Factory] = {name: factory for module in _MODULES for name, factory in module.FORMATS.items()} | {
    plain.NAME: plain.bind
}


def bind(name: str, codec: Codec, end_ids: Sequence[int] | None = None) -> TokenFormat:
    """The format of that name with the ids of this tokenizer.

    Args:
        name: one of `FORMATS`.
        codec: the served model's tokenizer.
        end_ids: the ids with which the served model's configuration ends a turn. `plain` needs them, all others check
            them where they are given.

    Raises:
        TokenFormatError: there is no such format, or a marker's id in the tokenizer is not the format's.
    """
    if name not in FORMATS:
        raise TokenFormatError(f"there is no token format {name!r}; there are {', '.join(sorted(FORMATS))}, and auto")
    return FORMATS[name](codec, end_ids)


def recognise(codec: Codec, template_text: str) -> str:
    """The name of the format that this tokenizer and chat template belong to; `plain` if of no known family."""
    return next((name for module in _MODULES if (name := module.recognise(codec, template_text))), plain.NAME)
