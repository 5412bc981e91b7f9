"""The draft's first weights: seeded random, and where the recipe says so and shapes fit, the target's own.

The decoder layer starts as the target's last one, reading the fused state where that layer read its input; norm and
head are the target's final norm and its head's rows of the draft vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from schemas.errors import DraftError
from schemas.sections import DraftSpec
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft

log = logging.getLogger("eyas.train")

ROPE_TYPES = ("default", "linear", "llama3", "yarn")

_SPREAD = 0.02  # standard deviation of random weights, as in Llama
_BRANCH_SHARE = 0.02  # the last layer adds to states far larger than the fused one, which it would drown


def draft_config(
    target: Mapping[str, Any], spec: DraftSpec, draft_vocab_size: int, aux_layers: list[int]
) -> DraftConfig:
    """The draft's shape: the recipe's sizes, and the target's where the recipe gives none.

    Args:
        target: facts of the target artifact.
        spec: the recipe's draft section.
        draft_vocab_size: tokens that the draft can propose.
        aux_layers: the captured layers.

    Raises:
        DraftError: query heads are no multiple of key-value heads, or the target's rotary embedding cannot be used.
    """
    heads = spec.num_attention_heads or target["num_attention_heads"]
    kv_heads = spec.num_key_value_heads or min(target["num_key_value_heads"], heads)
    if heads % kv_heads:
        raise DraftError(
            f"draft.num_attention_heads is {heads}, no multiple of its {kv_heads} key-value heads: "
            "set draft.num_key_value_heads to a divisor"
        )
    ends = target["eos_ids"]
    # the draft rotates whole heads, as engines do with a Llama-style draft
    rope = {name: value for name, value in target["rope_parameters"].items() if name != "partial_rotary_factor"}
    if (kind := rope.get("rope_type", "default")) not in ROPE_TYPES:
        raise DraftError(
            f"the target's rotary embedding is {kind!r}, whose angles depend on a request's length, so that what "
            f"training sees is not what is served: give the target a config with one of {', '.join(ROPE_TYPES)}"
        )
    return DraftConfig.model_validate(
        {
            "hidden_size": spec.hidden_size or target["hidden_size"],
            "target_hidden_size": target["hidden_size"],
            "intermediate_size": spec.intermediate_size or target["intermediate_size"],
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": spec.head_dim or target["head_dim"],
            "vocab_size": target["vocab_size"],
            "draft_vocab_size": draft_vocab_size,
            "rms_norm_eps": target["rms_norm_eps"],
            "rope_parameters": rope,
            "max_position_embeddings": target["context"],
            "aux_layers": tuple(aux_layers),
            "fc_norm": spec.fc_norm,
            "norm_output": spec.norm_output,
            "norm_before_residual": spec.norm_before_residual,
            "bos_token_id": target["bos_id"],
            "eos_token_id": ends[0] if len(ends) == 1 else ends,
            "pad_token_id": target["pad_id"],
        }
    )


@torch.no_grad()
def fresh_draft(config: DraftConfig, target_ids: Tensor, seed: int) -> Eagle3Draft:
    """A draft of seeded random weights; fc passes the highest of the three (scaled) states on, plus noise."""
    draft = Eagle3Draft(config)
    draft.set_vocabulary(target_ids)
    if draft.embed_tokens is not None:
        draft.embed_tokens.weight.zero_()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in draft.named_parameters():
        if parameter.ndim > 1 and not name.startswith("embed_tokens"):
            parameter.normal_(0.0, _SPREAD, generator=generator)
    if config.hidden_size == config.target_hidden_size:
        draft.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size)
    return draft


@torch.no_grad()
def narrow_embedding(embedding: Tensor, width: int) -> Tensor:
    """Token embeddings in their principal directions: (vocab, target_hidden) -> (vocab, width).

    Of all linear maps to so few dimensions this one keeps most of the differences between tokens.

    Raises:
        DraftError: the draft is wider than the target.
    """
    if width > embedding.shape[1]:
        raise DraftError(f"draft.hidden_size is {width}, the target's is {embedding.shape[1]}: use at most that")
    exact = embedding.double()
    values, directions = torch.linalg.eigh(exact.t() @ exact)
    chosen = directions[:, values.argsort(descending=True)[:width]]
    signs = chosen.gather(0, chosen.abs().argmax(0)[None]).sign()  # a direction has no sign of its own
    return (exact @ (chosen * signs)).to(embedding.dtype)


@torch.no_grad()
def take_from_target(draft: Eagle3Draft, last_layer: Mapping[str, Tensor], final_norm: Tensor, head: Tensor) -> None:
    """Overwrite what fits with the target's last decoder layer, final norm and head.

    Args:
        draft: the draft.
        last_layer: the layer's state dict, in Llama's names; other names are left alone.
        final_norm: (target_hidden,).
        head: (vocab, target_hidden).
    """
    layer = draft.midlayer
    left: list[str] = []
    _copy(layer.hidden_norm.weight, last_layer.get("input_layernorm.weight"), "hidden_norm", left)
    _copy(layer.post_attention_layernorm.weight, last_layer.get("post_attention_layernorm.weight"), "post_norm", left)
    hidden = draft.config.hidden_size
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = layer.self_attn.get_parameter(f"{name}.weight")  # reads the embedding, then the state
        _copy(weight[:, hidden:], last_layer.get(f"self_attn.{name}.weight"), name, left)
    _copy(layer.self_attn.o_proj.weight, last_layer.get("self_attn.o_proj.weight"), "o_proj", left, _BRANCH_SHARE)
    for name, share in (("gate_proj", 1.0), ("up_proj", 1.0), ("down_proj", _BRANCH_SHARE)):
        _copy(layer.mlp.get_parameter(f"{name}.weight"), last_layer.get(f"mlp.{name}.weight"), name, left, share)
    _copy(draft.norm.weight, final_norm, "norm", left)
    _copy(draft.lm_head.weight, head[draft.target_ids()], "lm_head", left)
    if left:
        log.info("these parts of the draft differ in shape from the target's and start random: %s", ", ".join(left))


def _copy(into: Tensor, source: Tensor | None, name: str, left: list[str], share: float = 1.0) -> None:
    if source is None or source.shape != into.shape:
        left.append(name)
    else:
        into.copy_(source * share)
