"""The gradient of a batch, sequence by sequence on several threads.

Each thread runs torch with one thread, which uses two cores better than one pass with two, and the sum is taken in the
batch's order: the result does not depend on the number of threads, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from tasks.draft.model import Eagle3Draft
from tasks.train.objective import TrainingTimeTest
from tasks.train.sequence import Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PartGradient:
    """What one part of a batch adds to it."""

    gradients: list[Tensor]  # one per trained parameter
    sums: list[list[float]]  # of the rows' losses per step, once for each piece that was added up


class Crew:
    """Threads that work on parts at the same time, each with one torch thread."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "train", lambda: torch.set_num_threads(1)) if threads > 1 else None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the items' order; items begin in order too, so put long ones first."""
        if self._pool is None:
            return [function(item) for item in items]
        return list(self._pool.map(function, items))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def crew_of(threads: int) -> Iterator[Crew]:
    """A crew for the block; this thread too computes with one torch thread in it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    crew = Crew(threads)
    try:
        yield crew
    finally:
        crew.close()
        torch.set_num_threads(before)


def batch_gradient(
    draft: Eagle3Draft,
    test: TrainingTimeTest,
    batch: Many[Sequence],
    parameters: list[nn.Parameter],
    crew: Crew,
    at_once: int = 0,
    counts: list[int] | None = None,
) -> list[PartGradient]:
    """The gradients of a batch's parts, which add up to the batch's, in the batch's order.

    On a CPU a part is a sequence, elsewhere it is as many as are computed at once.

    Args:
        draft: the draft.
        test: the training-time test.
        batch: sequences.
        parameters: what the gradient is taken by.
        crew: computes parts at the same time.
        at_once: sequences whose gradients are held at the same time; earlier ones are added up. 0 takes all.
        counts: trained rows of each step where the batch is a share of a larger one.
    """
    counts = counts or test.counts(batch)
    parts: list[PartGradient] = []
    for start in range(0, len(batch), at_once or max(len(batch), 1)):
        some = batch[start : start + (at_once or len(batch))]
        pieces = [[sequence] for sequence in some] if test.embedding.device.type == "cpu" else [some]
        found = _in_order(pieces, lambda piece: part_gradient(draft, test, piece, parameters, counts), crew)
        parts = [added_up([*parts, *found])] if at_once else found
    return parts


def _in_order(
    pieces: Many[Many[Sequence]], function: Callable[[Many[Sequence]], PartGradient], crew: Crew
) -> list[PartGradient]:
    """The pieces' gradients in their order, though the longest piece is begun with."""
    longest_first = sorted(range(len(pieces)), key=lambda index: -sum(one.served for one in pieces[index]))
    found = crew.map(lambda index: function(pieces[index]), longest_first)
    by_index = dict(zip(longest_first, found, strict=True))
    return [by_index[index] for index in range(len(pieces))]


def added_up(parts: list[PartGradient]) -> PartGradient:
    """The sum of parts, in their order; takes over the first one's memory."""
    first, *rest = parts
    for part in rest:
        for total, gradient in zip(first.gradients, part.gradients, strict=True):
            total.add_(gradient)
    return PartGradient(first.gradients, [sums for part in parts for sums in part.sums])


def part_gradient(
    draft: Eagle3Draft,
    test: TrainingTimeTest,
    part: Many[Sequence],
    parameters: list[nn.Parameter],
    counts: list[int],
) -> PartGradient:
    """The gradient of some sequences of a batch that has `counts` rows in each step."""
    with torch.enable_grad():
        totals = test.losses(draft, part, counts)
        gradients = torch.autograd.grad(totals.loss, parameters, allow_unused=True, materialize_grads=True)
    return PartGradient(list(gradients), [totals.sums.tolist()])
