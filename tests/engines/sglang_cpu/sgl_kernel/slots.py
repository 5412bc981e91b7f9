"""Bookkeeping of key-value slots: req_to_token (requests, length) names the slot of each token of each request."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    requests: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, length: Any
) -> None:
    """Write the slots of new tokens into the table."""
    taken = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        req_to_token[request, start:end] = slots[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    requests: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, length: Any
) -> None:
    """Read the slots of tokens from the table."""
    taken = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        slots[taken : taken + end - start] = req_to_token[request, start:end].to(slots.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor, req_to_token: Tensor, lengths: Tensor, slots: Tensor, pool_length: Any, topk: int, steps: int
) -> None:
    """Read the slots of the tokens to be drafted, which follow each request's own."""
    count, flat = topk * steps, slots.view(-1)
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        flat[row * count : (row + 1) * count] = req_to_token[request, length : length + count].to(flat.dtype)


def fill_bonus_tokens_cpu(accepted: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of each request."""
    requests = lengths.shape[0]
    index = torch.arange(requests) * stride + lengths.long() - 1
    bonus[:requests] = accepted.view(-1)[index].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """The slots of accepted tokens; -1 is none."""
    index = accept_index.view(-1)
    index = index[index > -1].long()
    accepted[: index.numel()] = slots[index].to(accepted.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, requests: Tensor, lengths: Tensor, topk: int, steps: int, pool_length: int
) -> Tensor:
    """A table like req_to_token with one row per branch: the request's tokens, then the branch's own."""
    table = torch.zeros((requests.shape[0] * topk, pool_length), dtype=req_to_token.dtype)
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        for branch in range(topk):
            own = req_to_token[request, length + branch * steps :][:steps]
            table[row * topk + branch, :length] = req_to_token[request, :length]
            table[row * topk + branch, length : length + own.numel()] = own
    return table


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Copy rows within every layer's buffer: pointers to buffers, bytes per row."""
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)
