"""Which drafted tokens the target keeps, so that what comes out is distributed as if the target alone had sampled it.

Sources: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.target.sampling import draw


@dataclass(frozen=True)
class Proposal:
    """What a drafter proposes for a batch; a row may propose fewer tokens than the width k, even none."""

    tokens: Tensor  # int64 (rows, k), target ids
    lengths: Tensor  # int64 (rows,)
    chosen: Tensor  # float32 (rows, k), the draft's probability of each token; 1 where it was no draw
    distributions: Tensor | None = None  # float32 (rows, k, draft_vocab); None stands for point masses
    support: Tensor | None = None  # int64 (draft_vocab,), target id of each column of the distributions

    @classmethod
    def certain(cls, tokens: Tensor, lengths: Tensor) -> Proposal:
        """A proposal that was not drawn: all the draft's probability is on each token."""
        return cls(tokens, lengths, torch.ones(tokens.shape, device=tokens.device))


@dataclass(frozen=True)
class Verdict:
    """What a verify step gives each row; rows that were not asked for have zeros."""

    tokens: Tensor  # int64 (rows, k + 1), the kept tokens and then the target's own
    emitted: Tensor  # int64 (rows,), how many of them count: accepted + 1, or accepted if the last one ended the turn
    accepted: Tensor  # int64 (rows,)


@dataclass(frozen=True)
class Uniforms:
    """The random numbers of one verify step, float64 in [0, 1); greedy rows do not use them."""

    draft: Tensor  # (rows, chain), to draw the draft's tokens
    accept: Tensor  # (rows, chain)
    final: Tensor  # (rows,), for the token that the target draws itself


def verify(
    score: Callable[[Tensor, int], Tensor],
    proposal: Proposal,
    temperatures: Tensor,
    uniforms: Uniforms,
    active: Tensor,
    end_ids: Tensor,
) -> Verdict:
    """Judge a proposal, position by position, as long as a row's drafts are accepted.

    Args:
        score: gives the target's logits, (n, vocab), for n row numbers and one position of the verify step; only called
            for rows that still need them.
        proposal: what was drafted.
        temperatures: float (rows,); 0 is greedy.
        uniforms: this step's random numbers.
        active: int64, the row numbers to judge.
        end_ids: int64, tokens that end a turn: nothing after an accepted one is judged.
    """
    count, width = proposal.tokens.shape
    tokens = proposal.tokens.new_zeros(count, width + 1)
    emitted, accepted = proposal.lengths.new_zeros(count), proposal.lengths.new_zeros(count)
    rows = active
    for position in range(width + 1):
        token, kept = _judge(score(rows, position), proposal, temperatures, uniforms, rows, position)
        tokens[rows, position] = token
        emitted[rows] += 1
        accepted[rows] += kept
        rows = rows[kept & ~torch.isin(token, end_ids)]
        if not len(rows):
            break
    return Verdict(tokens, emitted, accepted)


def _judge(
    logits: Tensor, proposal: Proposal, temperatures: Tensor, uniforms: Uniforms, rows: Tensor, position: int
) -> tuple[Tensor, Tensor]:
    """The token each row gets at this position, int64 (n,), and whether it is the drafted one, bool (n,)."""
    token = logits.argmax(dim=-1)
    if position < proposal.tokens.shape[1]:
        offered, drafted = proposal.lengths[rows] > position, proposal.tokens[rows, position]
    else:
        offered, drafted = torch.zeros_like(rows, dtype=torch.bool), torch.full_like(rows, -1)
    kept = offered & (drafted == token)
    drawn = (temperatures[rows] > 0).nonzero()[:, 0]
    if len(drawn):
        probability = (logits[drawn].float() / temperatures[rows[drawn], None]).softmax(dim=-1)
        judged = _judge_drawn(probability, offered[drawn], drafted[drawn], proposal, uniforms, rows[drawn], position)
        token[drawn], kept[drawn] = judged
    return token, kept


def _judge_drawn(
    target: Tensor,
    offered: Tensor,
    drafted: Tensor,
    proposal: Proposal,
    uniforms: Uniforms,
    rows: Tensor,
    position: int,
) -> tuple[Tensor, Tensor]:
    """Rejection sampling: keep x with min(1, p(x)/q(x)), else draw from the normalised max(p - q, 0)."""
    kept = torch.zeros_like(offered)
    asked = offered.nonzero()[:, 0]
    if len(asked):
        which, token = rows[asked], drafted[asked]
        p = target[asked].gather(1, token[:, None])[:, 0].double()
        kept[asked] = uniforms.accept[which, position] * proposal.chosen[which, position] < p
    token = drafted.clone()
    lost = (offered & ~kept).nonzero()[:, 0]
    remaining = target
    if len(lost):
        remaining = target.clone()
        remaining[lost] = residual(target[lost], drafted[lost], proposal, rows[lost], position)
    own = (~kept).nonzero()[:, 0]
    token[own] = draw(remaining[own], uniforms.final[rows[own]])
    return token, kept


def residual(target: Tensor, drafted: Tensor, proposal: Proposal, rows: Tensor, position: int) -> Tensor:
    """max(p - q, 0), not normalised, (n, vocab), of rows whose draft was rejected."""
    rest = target.clone()
    if proposal.distributions is None or proposal.support is None:
        rest.scatter_(1, drafted[:, None], 0.0)
    else:
        rest[:, proposal.support] -= proposal.distributions[rows, position]
        rest.clamp_(min=0)
    # p = q up to rounding leaves nothing, but then a rejection is itself a matter of rounding
    return torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, target)
