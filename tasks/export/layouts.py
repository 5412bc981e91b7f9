"""One draft in the words of other readers: vLLM's own names, and speculators', which `vllm serve` takes by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from schemas.errors import DraftError
from tasks.draft.config import LAYER_IDS, SWITCHES, DraftConfig
from tasks.draft.stored import numbered_name

_SPECULATORS_VERSION = "0.9.0"
_DRAFTED = 3  # what `vllm serve` drafts by default with this config
_LLAMA = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "vocab_size",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def layout_tensors(config: DraftConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with numbered layers; without the mapping if the vocabulary is whole, for which vLLM has no place."""
    whole = config.draft_vocab_size == config.vocab_size
    left = ("d2t", "t2d") if whole else ()
    return {numbered_name(name): tensor for name, tensor in tensors.items() if name not in left}


def layout_config(config: DraftConfig, layout: str, target: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a layout.

    Raises:
        DraftError: there is no such layout.
    """
    fields = config.to_checkpoint()
    if layout == "vllm":  # a reader that does not know the ids at the top must not find others
        inner = {name: value for name, value in fields["eagle_config"].items() if name != LAYER_IDS}
        return fields | {"eagle_config": inner | {LAYER_IDS: fields[LAYER_IDS]}}
    if layout != "speculators":
        raise DraftError(f"there is no layout {layout!r}")
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": _SPECULATORS_VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        **{name: getattr(config, name) for name in SWITCHES},  # readers differ in what an absent one means
        "norm_before_fc": False,
        "embed_requires_grad": False,
        "target_hidden_size": config.target_hidden_size,
        LAYER_IDS: fields[LAYER_IDS],
        "transformer_layer_config": {name: fields[name] for name in _LLAMA},
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": _DRAFTED,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": target.get("model", ""),
                "architectures": list(target.get("architectures", [])),
            },
        },
    }
