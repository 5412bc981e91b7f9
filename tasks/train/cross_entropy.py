"""Soft cross-entropy of the draft's head against the target, fused: the gradient is made while the scores are at hand.

Scores exist only for a block of positions at a time, so that memory does not grow with the draft's vocabulary times the
batch. The target's distribution over a block serves all steps of the training-time test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.draft.linear import product, stack_rows

_BLOCK_SCORES = 2**21  # per step; 512 positions of a 4096-token vocabulary


@dataclass(frozen=True)
class StepTotals:
    """Sums over the rows of each step of the training-time test."""

    loss: Tensor  # scalar with gradient: Σ over steps of weight · cross_entropy
    cross_entropy: Tensor  # (steps,)
    hits: Tensor  # int64 (steps,): rows whose best guess is the teacher's best within the draft vocabulary


def soft_cross_entropy(
    head: Tensor, outputs: list[Tensor], teacher_head: Tensor, teacher: list[Tensor], weights: list[float]
) -> StepTotals:
    """Cross-entropy of softmax(outputs @ head) under softmax(teacher @ teacher_head), both over the draft vocabulary.

    Args:
        head: (draft_vocab, hidden), with gradient unless frozen.
        outputs: per step i the normalised outputs of all sequences' rows one after another; a sequence of n served rows
            has its first n - i in step i (none if that is negative), and what follows is ignored.
        teacher_head: (draft_vocab, target_hidden).
        teacher: per sequence (n, target_hidden); row r of step i is taught by r + i.
        weights: factor of each step's sum in the loss.
    """
    loss, cross_entropy, hits = _SoftCrossEntropy.apply(head, teacher_head, teacher, weights, *outputs)
    return StepTotals(loss, cross_entropy, hits)


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head: Tensor, teacher_head: Tensor, teacher: list[Tensor], weights: list[float], *outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps = len(outputs)
        cross_entropy, hits = head.new_zeros(steps), torch.zeros(steps, dtype=torch.int64, device=head.device)
        into_outputs = [torch.zeros_like(output) for output in outputs]
        into_head = torch.zeros_like(head) if ctx.needs_input_grad[0] else None
        starts = [0] * steps
        for states in teacher:
            for span in _spans(len(states), len(head)):
                rows = [slice(starts[i] + max(span.start - i, 0), starts[i] + span.stop - i) for i in range(steps)]
                rows = [part if part.stop > part.start else slice(0, 0) for part in rows]
                hidden = stack_rows(output[part] for output, part in zip(outputs, rows, strict=True))
                sizes = [part.stop - part.start for part in rows]
                gradient = _block(
                    product(hidden, head), product(states[span], teacher_head), sizes, weights, cross_entropy, hits
                )
                pieces = product(gradient, head.t())[: sum(sizes)].split(sizes)
                for into, part, piece in zip(into_outputs, rows, pieces, strict=True):
                    into[part] = piece
                if into_head is not None:
                    into_head += product(gradient.t().contiguous(), hidden.t())
            starts = [start + max(len(states) - i, 0) for i, start in enumerate(starts)]
        ctx.save_for_backward(*into_outputs, *([] if into_head is None else [into_head]))
        ctx.steps = steps
        ctx.mark_non_differentiable(cross_entropy, hits)
        return (cross_entropy * cross_entropy.new_tensor(weights)).sum(), cross_entropy, hits

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
    scores: Tensor, teacher_scores: Tensor, sizes: list[int], weights: list[float], cross_entropy: Tensor, hits: Tensor
) -> Tensor:
    """The weighted gradient of the block's scores, (rows of all steps, draft_vocab); adds to the totals.

    The rows of step i are taught by the block's last sizes[i] positions; rows beyond all sizes get zeros.
    """
    teacher_best = teacher_scores.argmax(-1)
    teacher = teacher_scores.softmax(-1)
    best = scores.max(-1)
    gradient = scores.softmax(-1)
    log_sum = best.values - gradient.gather(-1, best.indices[:, None])[:, 0].log()
    start = 0
    for step, size in enumerate(sizes):
        rows, taught = slice(start, start + size), slice(len(teacher) - size, len(teacher))
        expected = torch.linalg.vecdot(teacher[taught], scores[rows])
        cross_entropy[step] += (log_sum[rows] - expected).sum()
        hits[step] += (best.indices[rows] == teacher_best[taught]).sum()
        gradient[rows].sub_(teacher[taught]).mul_(weights[step])
        start += size
    gradient[start:].zero_()
    return gradient
