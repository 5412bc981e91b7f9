"""Attention over a paged key-value pool, one request after the other.

k_buffer and v_buffer are (slots, kv heads, dim); req_to_token (requests, length) names the slot of each token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: Any,
    v_scale: Any,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots: Tensor,
    scores: Any,
    req_to_token: Tensor,
    requests: Tensor,
    lengths: Tensor,
    scale: float,
    *_rest: Any,
) -> None:
    """One new token per request: query (requests, heads, dim) -> output; key and value go into the pool first."""
    if key is not None and value is not None:
        k_buffer[slots] = key.view(-1, *k_buffer.shape[-2:]).to(k_buffer.dtype)
        v_buffer[slots] = value.view(-1, *v_buffer.shape[-2:]).to(v_buffer.dtype)
    groups = query.shape[1] // k_buffer.shape[-2]
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        tokens = req_to_token[request, :length].long()
        keys, values = (_heads(buffer[tokens], groups) for buffer in (k_buffer, v_buffer))  # (heads, length, dim)
        weights = (torch.einsum("hd,htd->ht", query[row], keys) * scale).softmax(-1)
        output[row] = torch.einsum("ht,htd->hd", weights, values)


def extend_attention_cpu(
    query: Tensor,
    key: Any,
    value: Any,
    output: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: Any,
    v_scale: Any,
    req_to_token: Tensor,
    requests: Tensor,
    lengths: Tensor,
    extends: Tensor,
    starts: Tensor,
    longest: Any,
    scale: float,
    cap: Any,
    is_cross: Any,
    window: Any,
    encoder_lengths: Any,
    sinks: Any,
    tree_mask: Tensor | None,
    *_rest: Any,
) -> None:
    """Several new tokens per request, whose keys are in the pool: query (tokens, heads, dim) -> output.

    The new ones see each other causally, or as tree_mask says: (new, new) per request, one after the other.
    """
    groups = query.shape[1] // k_buffer.shape[-2]
    offset = 0
    rows = zip(requests.tolist(), lengths.tolist(), extends.tolist(), starts.tolist(), strict=True)
    for request, length, new, start in rows:
        tokens = req_to_token[request, :length].long()
        keys, values = (_heads(buffer[tokens], groups) for buffer in (k_buffer, v_buffer))
        mask = torch.ones(new, length, dtype=torch.bool).tril(length - new)
        if tree_mask is not None:
            mask[:, length - new :] = tree_mask.view(-1)[offset : offset + new * new].view(new, new).bool()
            offset += new * new
        asked = query[start : start + new].transpose(0, 1)  # (heads, new, dim)
        found = functional.scaled_dot_product_attention(asked[None], keys[None], values[None], mask, scale=scale)
        output[start : start + new] = found[0].transpose(0, 1)


def _heads(states: Tensor, groups: int) -> Tensor:
    """(length, kv heads, dim) -> (kv heads · groups, length, dim)."""
    return states.transpose(0, 1).repeat_interleave(groups, 0)
