"""The loss of the draft's head against the target, fused: the gradient is made while the scores are at hand.

Scores exist only for a block of positions at a time, so that memory does not grow with the draft's vocabulary times the
batch. The target's distribution over a block serves all steps of the training-time test.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.draft.linear import product, stack_rows
from tasks.train.losses import LOSSES, NEEDS_MASS, LossKind, Taught
from tasks.train.top_tokens import TopRows

Teacher = Tensor | TopRows

_BLOCK_SCORES = 2**21  # per step; 512 positions of a 4096-token vocabulary


@dataclass(frozen=True)
class StepTotals:
    """Sums over the rows of each step of the training-time test."""

    loss: Tensor  # scalar with gradient: Σ over steps of weight · sum
    sums: Tensor  # (steps,), of the rows' losses
    hits: Tensor  # int64 (steps,): rows whose best guess is the teacher's best within the draft vocabulary


@dataclass(frozen=True)
class Objective:
    """What the scores are compared with, and how."""

    kind: LossKind
    decay: float  # of lk_lambda's weight
    teacher_head: Tensor  # (draft_vocab, target_hidden), the target's rows of the draft vocabulary
    whole_head: Tensor | None = None  # (vocab, target_hidden), for losses that need the restricted mass
    lookup: Tensor | None = None  # int64 (vocab,), see draft_lookup; for teachers of likeliest tokens

    def taught(self, states: Teacher) -> tuple[Taught, Tensor]:
        """The target's side of some positions, (positions, target_hidden), and its best draft ids, int64."""
        scores = self._scores(states)
        shares = scores.softmax(-1)
        if self.kind == "cross_entropy":
            return Taught(shares, shares.new_zeros(len(shares)), None), scores.argmax(-1)
        log_sum = scores.logsumexp(-1)
        mass = None
        if self.kind in NEEDS_MASS:
            mass = (log_sum if isinstance(states, TopRows) else log_sum - self._log_sum(states)).exp()
        return Taught(shares, log_sum - torch.linalg.vecdot(shares, scores), mass), scores.argmax(-1)

    def _scores(self, states: Teacher) -> Tensor:
        if isinstance(states, Tensor):
            return _wide(product(states, self.teacher_head))
        if self.lookup is None:
            raise ValueError("a teacher of likeliest tokens needs the draft id of each token")
        return states.scores(self.lookup, len(self.teacher_head))

    def _log_sum(self, states: Tensor) -> Tensor:
        if self.whole_head is None:
            raise ValueError(f"the loss {self.kind} needs the target's whole head")
        rows = max(_BLOCK_SCORES // len(self.whole_head), 1)
        return torch.cat([_wide(product(part, self.whole_head)).logsumexp(-1) for part in states.split(rows)])


def fused_loss(
    head: Tensor, outputs: list[Tensor], objective: Objective, teacher: Many[Teacher], weights: list[float]
) -> StepTotals:
    """The loss of outputs @ head, over the draft vocabulary.

    Args:
        head: (draft_vocab, hidden), with gradient unless frozen.
        outputs: per step i what the head reads of all sequences' rows one after another; a sequence of n served rows
            has its first n - i in step i (none if that is negative), and what follows is ignored.
        objective: the loss and the target's side of it.
        teacher: per sequence (n, target_hidden), or n rows of likeliest tokens; row r of step i is taught by r + i.
        weights: factor of each step's sum in the loss.
    """
    loss, sums, hits = _FusedLoss.apply(head, objective, teacher, weights, *outputs)
    return StepTotals(loss, sums, hits)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head: Tensor, objective: Objective, teacher: Many[Teacher], weights: list[float], *outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = len(outputs)
        sums, hits = head.new_zeros(steps), torch.zeros(steps, dtype=torch.int64, device=head.device)
        into_outputs = [torch.zeros_like(output) for output in outputs]
        into_head = torch.zeros_like(head) if ctx.needs_input_grad[0] else None
        starts = [0] * steps
        for states in teacher:
            for span in _spans(len(states), len(head)):
                rows = [slice(starts[i] + max(span.start - i, 0), starts[i] + span.stop - i) for i in range(steps)]
                rows = [part if part.stop > part.start else slice(0, 0) for part in rows]
                hidden = stack_rows(output[part] for output, part in zip(outputs, rows, strict=True))
                sizes = [part.stop - part.start for part in rows]
                scores = _wide(product(hidden, head))
                gradient = _block(scores, objective, states[span], sizes, weights, sums, hits)
                pieces = product(gradient, head.t())[: sum(sizes)].split(sizes)
                for into, part, piece in zip(into_outputs, rows, pieces, strict=True):
                    into[part] = piece
                if into_head is not None:
                    into_head += product(gradient.t().contiguous(), hidden.t())
            starts = [start + max(len(states) - i, 0) for i, start in enumerate(starts)]
        ctx.save_for_backward(*into_outputs, *([] if into_head is None else [into_head]))
        ctx.steps = steps
        ctx.mark_non_differentiable(sums, hits)
        return (sums * sums.new_tensor(weights)).sum(), sums, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        saved = ctx.saved_tensors
        if gradient.item() != 1.0:
            saved = [into * gradient for into in saved]
        into_head = saved[ctx.steps] if len(saved) > ctx.steps else None
        return into_head, None, None, None, *saved[: ctx.steps]


def _spans(positions: int, vocabulary: int) -> list[slice]:
    block = max(_BLOCK_SCORES // vocabulary, 1)
    return [slice(start, min(start + block, positions)) for start in range(0, positions, block)]


def _block(
    scores: Tensor,
    objective: Objective,
    states: Teacher,
    sizes: list[int],
    weights: list[float],
    sums: Tensor,
    hits: Tensor,
) -> Tensor:
    """The weighted gradient of the block's scores, (rows of all steps, draft_vocab); adds to the totals.

    The rows of step i are taught by the block's last sizes[i] positions; rows beyond all sizes get zeros.
    """
    taught, teacher_best = objective.taught(states)
    best = scores.max(-1)
    gradient = scores.softmax(-1)
    log_sum = best.values - gradient.gather(-1, best.indices[:, None])[:, 0].log()
    start = 0
    for step, size in enumerate(sizes):
        rows, side = slice(start, start + size), taught.last(size)
        entropies = log_sum[rows] - torch.linalg.vecdot(side.shares, scores[rows])
        sums[step] += LOSSES[objective.kind](gradient[rows], entropies, side, objective.decay).sum()
        gradient[rows].mul_(weights[step])
        hits[step] += (best.indices[rows] == teacher_best[len(teacher_best) - size :]).sum()
        start += size
    gradient[start:].zero_()
    return gradient


def _wide(scores: Tensor) -> Tensor:
    """Scores in at least float32, since sums of thousands of exponentials are taken over them."""
    return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
