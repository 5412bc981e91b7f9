"""`plain`: any chat template in which an answer is free text and an end id. SmolLM2 is one.

Limits: it knows neither reasoning nor tool sections. A whole tool section and a torn one are the same to it, an answer
that came with reasoning apart cannot be rebuilt, and marker text in an answer is always a doubt. A model that has more
needs a family of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import TokenFormatError
from tasks.formats.codec import Codec
from tasks.formats.format import Opening, TokenFormat
from tasks.formats.thinking import Family

NAME = "plain"


def bind(codec: Codec, end_ids: Sequence[int] | None = None) -> TokenFormat:
    """The plain format with the ids that end a turn of the served model.

    Raises:
        TokenFormatError: there is no end id, or one is the id of ordinary text.
    """
    if not end_ids:
        raise TokenFormatError("the format plain must be told which ids end a turn; set eos_token_id in the target")
    names = {number: text for text, number in codec.markers.items()}
    for number in end_ids:
        if number not in names:
            text = codec.decode([[number]])[0] if 0 <= number < codec.vocab_size else ""
            raise TokenFormatError(
                f"the target ends a turn with id {number}, which is no control token of its tokenizer but the text "
                f"{text!r}; correct eos_token_id in its generation_config.json"
            )
    ends = {names[number]: number for number in end_ids}
    openings: dict[bool, Opening] = {True: "unsaid", False: "unsaid"}
    return Family(NAME, ends, tuple(ends), turns=(), openings=openings, strict=False).bind(codec)
