"""Whether a draft is one for this target: its sizes, its layers, and how far its positions reach.

Engines check little of this: a draft that does not fit loads without a word and is accepted almost never.
"""

from __future__ import annotations

from typing import Any

from schemas.errors import DraftError
from tasks.draft.config import DraftConfig


def check_fit(config: DraftConfig, facts: dict[str, Any], context: int) -> None:
    """Refuse a draft that was made for another target, or that cannot serve a context.

    Args:
        config: the draft's.
        facts: the target's vocab_size, hidden_size and num_layers.
        context: tokens that will be asked for.

    Raises:
        DraftError: names the field, both values, and the remedy.
    """
    for field, wanted in (("target_hidden_size", "hidden_size"), ("vocab_size", "vocab_size")):
        found, right = getattr(config, field), facts[wanted]
        if found != right:
            raise DraftError(f"the draft's {field} is {found}, the target has {right}: it was trained for another one")
    check_layers(config.aux_layers, facts["num_layers"])
    if config.max_position_embeddings < context:
        raise DraftError(
            f"the draft's max_position_embeddings is {config.max_position_embeddings}, requests may have {context} "
            "tokens, and beyond it engines crash or accept nothing: set it to the target's in the draft's config.json, "
            "or ask for less (measure.context_length)"
        )


def check_layers(layers: tuple[int, ...], count: int) -> None:
    """Refuse auxiliary layers that the target has not, or whose numbers engines read in different ways.

    Args:
        layers: 0-based layers whose output is captured, as read by the rule of vLLM and llama.cpp.
        count: the target's layers.

    Raises:
        DraftError: says what stands in config.json and what should.
    """
    written = [layer + 1 for layer in layers]
    default = [2, count // 2, count - 3]
    if written == [number - 1 for number in default]:
        raise DraftError(
            f"eagle_aux_hidden_state_layer_ids are {written}: the default layers, numbered by their output. vLLM and "
            f"llama.cpp read such numbers as the layer before which they capture, and would take the wrong states: "
            f"write {default}"
        )
    if sorted(set(layers)) != list(layers) or layers[0] < 0 or layers[-1] >= count:
        raise DraftError(
            f"eagle_aux_hidden_state_layer_ids are {written}, the target has {count} layers: they must be three "
            f"different numbers from 1 to {count} in ascending order, usually {default}"
        )
