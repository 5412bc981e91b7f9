"""Batched decoding with transformers' forward pass: what all prompts begin with is read once, finished rows leave.

A row's result depends on the other rows through rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache

from tasks.target.cache import block_cache, joined, repeated
from tasks.target.model import Target

PREFILL_TOKENS = 512  # padded tokens per pass over prompts
COMPACT_SHARE = 0.125  # finished rows are dropped when they are more than this share of the batch

Choose = Callable[[Tensor, Tensor, int], Tensor]


def ignore(ended: int) -> None:
    """Nobody wants to know."""


def greedy(logits: Tensor, rows: Tensor, step: int) -> Tensor:
    """The likeliest tokens: (rows, vocab) -> int64 (rows,)."""
    return logits.argmax(-1)


@torch.no_grad()
def decode(
    target: Target,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    choose: Choose = greedy,
    eos_ids: Sequence[int] = (),
    report: Callable[[int], None] = ignore,
) -> list[list[int]]:
    """The new ids of each prompt, up to and with the first end id or `max_tokens`.

    Args:
        choose: picks the next tokens from scores (rows, vocab), the prompts' places int64 (rows,), and the step.
        report: told after each step how many rows ended.
    """
    device = target.device
    ends = torch.tensor(list(eos_ids), dtype=torch.int64, device=device)
    outputs = torch.zeros(len(prompts), max_tokens, dtype=torch.int64, device=device)
    lengths = torch.full((len(prompts),), max_tokens, device=device)
    last, cache, mask = prefill(target, prompts)
    positions = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    rows = torch.arange(len(prompts), device=device)  # which prompts are in the batch
    for step in range(max_tokens):
        tokens = choose(target.lm_head(last), rows, step)
        outputs[rows, step] = tokens
        is_open = lengths[rows] > step
        ended = is_open & (torch.isin(tokens, ends) | (step + 1 == max_tokens))
        lengths[rows[ended]] = step + 1
        report(int(ended.sum()))
        stay = torch.nonzero(is_open & ~ended)[:, 0]
        if not len(stay):
            break
        if len(rows) - len(stay) > COMPACT_SHARE * len(rows):
            rows, tokens, mask, positions = rows[stay], tokens[stay], mask[stay], positions[stay]
            cache.batch_select_indices(stay)
        mask = functional.pad(mask, (0, 1), value=1)
        last = target.hidden(tokens[:, None], mask, positions, cache)[:, -1]
        positions = positions + 1
    return [outputs[row, : lengths[row]].tolist() for row in range(len(prompts))]


def prefill(target: Target, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Cache, Tensor]:
    """Read the prompts: what all begin with once, the rest in passes of rows of similar length.

    Returns:
        the states after each prompt's last id (B, hidden), the cache, and its mask, int64 (B, positions).
    """
    # what follows a shared prefix is aligned at its end, and the gap that this leaves would count in a window
    shared = 0 if target.has_windows else _shared_length(prompts)
    prefix = block_cache(len(target.layers))
    if shared:
        target.hidden(torch.tensor([prompts[0][:shared]], device=target.device), cache=prefix)
    states, caches, masks = [], [], []
    for group in _groups([len(prompt) - shared for prompt in prompts]):
        ids, mask = left_padded([prompts[row][shared:] for row in group])
        ids, mask = ids.to(target.device), functional.pad(mask.to(target.device), (shared, 0), value=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
        cache = repeated(prefix, len(group)) if shared else block_cache(len(target.layers))
        states.append(target.hidden(ids, mask, positions, cache)[:, -1])
        caches.append(cache)
        masks.append(mask)
    width = max(mask.shape[1] for mask in masks)
    aligned = [
        torch.cat([mask[:, :shared], functional.pad(mask[:, shared:], (width - mask.shape[1], 0))], dim=1)
        for mask in masks
    ]
    return torch.cat(states), joined(caches, shared), torch.cat(aligned)


def left_padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids that end together and their mask, both int64 (B, longest)."""
    width = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row)
        mask[index, width - len(row) :] = 1
    return ids, mask


def _shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many first ids all prompts have in common, at least one of each left over."""
    first, last = min(map(list, prompts)), max(map(list, prompts))
    shortest = min(len(prompt) for prompt in prompts) - 1
    differs = (index for index in range(shortest) if first[index] != last[index])
    return next(differs, shortest) if len(prompts) > 1 else 0


def _groups(lengths: Sequence[int]) -> list[range]:
    """Runs of neighbouring rows with at most `PREFILL_TOKENS` padded tokens each, or one row."""
    groups, begin, width = [], 0, 0
    for row, length in enumerate(lengths):
        if row > begin and max(width, length) * (row + 1 - begin) > PREFILL_TOKENS:
            groups.append(range(begin, row))
            begin, width = row, 0
        width = max(width, length)
    return [*groups, range(begin, len(lengths))]
