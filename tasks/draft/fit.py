"""Whether a draft is one for this target, by its sizes and by how far its positions reach.

Engines check little of this: a draft that does not fit loads without a word and is accepted almost never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.errors import DraftError


def check_fit(fields: Mapping[str, Any], facts: Mapping[str, Any], context: int) -> None:
    """Refuse a draft that was made for another target, or that cannot serve a context.

    Args:
        fields: the draft's sizes, by the names of `DraftConfig`.
        facts: the target's vocab_size and hidden_size.
        context: tokens that will be asked for.

    Raises:
        DraftError: names the field, both values, and the remedy.
    """
    for field, wanted in (("target_hidden_size", "hidden_size"), ("vocab_size", "vocab_size")):
        found, right = fields[field], facts[wanted]
        if found != right:
            raise DraftError(f"the draft's {field} is {found}, the target has {right}: it was trained for another one")
    positions = fields["max_position_embeddings"]
    if positions < context:
        raise DraftError(
            f"the draft's max_position_embeddings is {positions}, requests may have {context} tokens, and beyond it "
            "engines crash or accept nothing: set it to the target's in the draft's config.json, or ask for less "
            "(measure.context_length)"
        )
