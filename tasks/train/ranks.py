"""Processes that train one draft together: each computes its share of every batch, and all add up their gradients.

The sum over all processes is the whole batch's gradient, so they make the same update and never need to compare
weights. Processes that torchrun starts form a group (`joined`); without one there is a single rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import distributed, nn

from tasks.train.gradient import PartGradient, added_up

Item = TypeVar("Item")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int
    count: int

    @classmethod
    def current(cls) -> Ranks:
        """Of torch's default group, if this process is in one."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls(0, 1)

    @property
    def is_first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def share(self, items: Many[Item]) -> Many[Item]:
        """This process's part of a batch."""
        return items[self.rank :: self.count]

    def total(self, counts: list[int], device: torch.device) -> list[int]:
        """The sums of all processes' counts."""
        if self.count == 1:
            return counts
        summed = torch.tensor(counts, dtype=torch.int64, device=device)
        distributed.all_reduce(summed)
        return summed.tolist()

    def add_up(self, parts: list[PartGradient], parameters: list[nn.Parameter], steps: int) -> list[PartGradient]:
        """The sum over all processes, as one part; what was given when there is one process.

        Args:
            parts: of this process's share, which may be empty.
            parameters: that the gradients belong to.
            steps: of the training-time test.
        """
        if self.count == 1:
            return parts
        nothing = PartGradient([torch.zeros_like(parameter) for parameter in parameters], [[0.0] * steps])
        own = added_up(parts) if parts else nothing
        sums = torch.tensor(own.sums, dtype=torch.float64, device=parameters[0].device).sum(0)
        for tensor in (*own.gradients, sums):
            distributed.all_reduce(tensor)
        return [PartGradient(own.gradients, [sums.tolist()])]

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            distributed.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Join the group that torchrun set up, over NCCL between GPUs and gloo between CPUs; yields this rank's device."""
    own = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device.type == "cuda" else device
    if own.type == "cuda":
        torch.cuda.set_device(own)
    distributed.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield own
    finally:
        distributed.destroy_process_group()
