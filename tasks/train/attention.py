"""Attention of the training-time test for one sequence, without a mask over steps.

Row t at step i sees the keys of step 0 up to its own position, and its own keys of steps 1..i: what the cache of an
engine holds when the draft has fed itself i times. The second kind is one key per row and step, so it is a dot product,
never a matrix. Source: EAGLE-3, arXiv 2503.01840, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_BLOCK_SCORES = 2**24  # scores kept for the backward pass; longer sequences recompute theirs block by block


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, own_keys: list[Tensor], own_values: list[Tensor], first: int
) -> Tensor:
    """Attend from the served rows of one sequence.

    Args:
        queries: (rows, heads, head_dim); row r is at position first + r of the sequence.
        keys, values: of step 0, (positions, kv_heads, head_dim).
        own_keys, own_values: of steps 1..i, each (at least rows, kv_heads, head_dim).
        first: position of the first row.

    Returns:
        (rows, heads·head_dim).
    """
    rows, heads, _ = queries.shape
    block = max(_BLOCK_SCORES // (heads * len(keys)), 1)
    if rows <= block:
        return _attend(queries, keys, values, own_keys, own_values, first)
    parts = []
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        seen = first + stop
        parts.append(
            checkpoint(
                _attend,
                queries[start:stop],
                keys[:seen],
                values[:seen],
                [own[start:stop] for own in own_keys],
                [own[start:stop] for own in own_values],
                first + start,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        )
    return torch.cat(parts)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, own_keys: list[Tensor], own_values: list[Tensor], first: int
) -> Tensor:
    rows, heads, dim = queries.shape
    positions, kv_heads, _ = keys.shape
    group = heads // kv_heads
    grouped = (queries * dim**-0.5).view(rows, kv_heads, group, dim).permute(1, 2, 0, 3)  # (kv, group, rows, dim)
    scores = grouped.reshape(kv_heads, group * rows, dim) @ keys.permute(1, 2, 0)
    scores = scores.view(kv_heads, group, rows, positions) + _causal(rows, positions, first, keys)
    own = [(grouped * _per_row(key[:rows])).sum(-1, keepdim=True) for key in own_keys]  # each (kv, group, rows, 1)
    weights = torch.cat([scores, *own], dim=-1).softmax(-1)
    shared = weights[..., :positions].reshape(kv_heads, group * rows, positions) @ values.transpose(0, 1)
    attended = shared.view_as(grouped)
    for step, value in enumerate(own_values):
        attended = attended + weights[..., positions + step, None] * _per_row(value[:rows])
    return attended.permute(2, 0, 1, 3).reshape(rows, heads * dim)


def _per_row(own: Tensor) -> Tensor:  # (rows, kv, dim) -> (kv, 1, rows, dim)
    return own.transpose(0, 1)[:, None]


def _causal(rows: int, positions: int, first: int, like: Tensor) -> Tensor:  # (rows, positions): 0 or -inf
    blocked = torch.full((rows, positions), float("-inf"), dtype=like.dtype, device=like.device)
    return blocked.triu(first + 1)
