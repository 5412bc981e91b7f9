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
    cross_entropy: Tensor  # (steps,), sums over rows
    hits: Tensor  # int64 (steps,)


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
    draft: Eagle3Draft, test: TrainingTimeTest, batch: Many[Sequence], parameters: list[nn.Parameter], crew: Crew
) -> list[PartGradient]:
    """The gradients of a batch's parts, one part per sequence in the batch's order; their sum is the batch's."""
    counts = test.counts(batch)
    order = sorted(range(len(batch)), key=lambda index: -batch[index].served)
    parts = crew.map(lambda index: part_gradient(draft, test, [batch[index]], parameters, counts), order)
    return [part for _, part in sorted(zip(order, parts, strict=True), key=lambda pair: pair[0])]


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
    return PartGradient(list(gradients), totals.cross_entropy, totals.hits)
