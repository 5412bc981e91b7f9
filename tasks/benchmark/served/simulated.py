"""What an engine should count on given answers, found without decoding: by one pass of target and draft over each.

The draft guesses from every place of an answer, each later guess fed with the answer's own tokens; a chain survives as
long as it guesses them. A walk over these survivals is what an engine does, so its counts are known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.benchmark.served.spoken import Counts
from tasks.draft.linear import product
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target


@dataclass(frozen=True)
class Answered:
    """A greedy answer, and what the target says after it: `beyond` more tokens where it was cut."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    beyond: tuple[int, ...] = ()


@torch.no_grad()
def survivals(
    draft: Eagle3Draft, target: Target, aux_layers: Sequence[int], answered: Answered, steps: int
) -> list[int]:
    """How many guesses in a row are right, from each place of the answer on.

    Args:
        draft: its `config.aux_layers` are not read.
        target: the model.
        aux_layers: layers whose outputs feed the draft.
        answered: the answer.
        steps: guesses per chain.

    Returns:
        Per place r of the output, except the last: guesses of its tokens r+1, r+2, ... that are right.
    """
    ids = torch.tensor([*answered.prompt, *answered.output, *answered.beyond], device=target.device)
    first, rows = len(answered.prompt) - 1, len(answered.output) - 1
    aux, _ = target.capture(ids[None], aux_layers=aux_layers)
    guesses = _guesses(draft, target, aux[0], ids, first, rows, steps)  # (rows, steps)
    wanted = torch.full_like(guesses, -1)
    for step in range(steps):
        known = ids[first + 2 + step : first + 2 + step + rows]
        wanted[: len(known), step] = known
    return (guesses == wanted).long().cumprod(dim=1).sum(dim=1).tolist()


def _guesses(draft: Eagle3Draft, target: Target, aux: Tensor, ids: Tensor, first: int, rows: int, steps: int) -> Tensor:
    """Target ids that chains from rows `first` on guess, int64 (rows, steps); a chain stops where tokens end."""
    places = torch.arange(len(ids) - 1, device=ids.device)
    dtype = draft.fc.weight.dtype
    embedded = draft.embed_tokens(ids) if draft.embed_tokens is not None else target.embed(ids).to(dtype)
    states = draft.fuse(aux[:-1].to(dtype))
    queries, keys, values = draft.project(embedded[1:], states, places)
    own: list[tuple[Tensor, Tensor]] = []
    queries, state = queries[first : first + rows], states[first : first + rows]
    found = torch.full((rows, steps), -1, dtype=torch.int64, device=ids.device)
    support = draft.target_ids()
    for step in range(steps):
        state = draft.finish(_attend(queries, keys, values, own, first), state)
        best = product(draft.head_input(state), draft.lm_head.weight).argmax(dim=-1)
        found[: len(state), step] = support[best]
        left = min(rows, len(ids) - 2 - first - step)  # rows whose next token is known
        if step + 1 == steps or left <= 0:
            break
        state = state[:left]
        at = torch.arange(first + 1 + step, first + 1 + step + left, device=ids.device)
        queries, new_keys, new_values = draft.project(embedded[at + 1], state, at)
        own = [(k[:left], v[:left]) for k, v in own] + [(new_keys, new_values)]
    return found


def _attend(queries: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]], first: int) -> Tensor:
    """Row r sees the first step's keys up to place first + r, and its own keys of later steps: (rows, heads·dim)."""
    rows, heads, dim = queries.shape
    group = heads // keys.shape[1]
    wide = [tensor.repeat_interleave(group, dim=1) for tensor in (keys, values)]
    scores = torch.einsum("rhd,phd->hrp", queries, wide[0])
    places = torch.arange(len(keys), device=queries.device)
    hidden = places[None] > first + torch.arange(rows, device=queries.device)[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    extra = [(queries * k.repeat_interleave(group, dim=1)).sum(-1).t()[..., None] for k, _ in own]
    weights = (torch.cat([scores, *extra], dim=-1) * dim**-0.5).softmax(dim=-1)
    attended = torch.einsum("hrp,phd->rhd", weights[..., : len(keys)], wide[1])
    for number, (_, value) in enumerate(own):
        attended = attended + weights[..., len(keys) + number].t()[..., None] * value.repeat_interleave(group, dim=1)
    return attended.flatten(1)


def walk(survived: Sequence[int], tokens: int, steps: int, rule: str) -> Counts:
    """What an engine counts over one answer.

    Args:
        survived: from `survivals`.
        tokens: of the answer.
        steps: tokens drafted a time.
        rule: how it counts the last step: "whole" counts every accepted draft, also those that are cut off; "fitting"
            drafts only what still fits, and steps without a draft do not count.
    """
    verify = drafted = 0
    by_position = [0] * steps
    made = 1  # the prefill's
    while made < tokens:
        width = steps if rule == "whole" else min(steps, tokens - made - 1)
        accepted = min(survived[made - 1], width)
        if width > 0:
            verify += 1
            drafted += width
            for place in range(accepted):
                by_position[place] += 1
        made += accepted + 1
    return Counts(verify, drafted, sum(by_position), tuple(by_position))
