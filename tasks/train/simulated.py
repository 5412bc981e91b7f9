"""Simulated acceptance: what a chain of drafts would get from an engine, read off held-out sequences without decoding.

A chain at row t survives step i iff all its guesses 0..i are the target's best token in the full vocabulary, so a
target token outside the draft vocabulary counts as missed. Later steps are fed with the answer's own tokens, as in
training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.draft.linear import product
from tasks.draft.model import Eagle3Draft
from tasks.train.gradient import Crew
from tasks.train.loader import SequenceSource
from tasks.train.objective import TrainingTimeTest

_BLOCK_SCORES = 2**23


@dataclass(frozen=True)
class SimulatedAcceptance:
    """Counts per step. A chain whose step leaves its sequence is in neither count of that step."""

    survived: list[int]
    chains: list[int]

    @property
    def acceptance(self) -> list[float]:
        """Share of chains that survive each step together with all before."""
        return [good / max(all_, 1) for good, all_ in zip(self.survived, self.chains, strict=True)]

    @property
    def length(self) -> float:
        """Mean tokens per step of the target: 1 + Σ share."""
        return 1 + sum(self.acceptance)


def count_survivors(guesses: list[Tensor], best: Tensor) -> SimulatedAcceptance:
    """Count the chains of one sequence.

    Args:
        guesses: per step i int64 (rows - i,), target ids; row r guesses the token that `best[r + i]` is.
        best: int64 (rows,), the target's best ids.
    """
    survived, chains = [], []
    alive = torch.ones_like(best, dtype=torch.bool)
    for step, guess in enumerate(guesses):
        alive = alive[: len(guess)] & (guess == best[step : step + len(guess)])
        survived.append(int(alive.sum()))
        chains.append(len(guess))
    return SimulatedAcceptance(survived, chains)


class HeldOut:
    """Measures a draft on held-out sequences, which are read anew each time; the target's best ids are kept."""

    def __init__(self, store: SequenceSource, head: Tensor) -> None:
        self._store, self._head = store, head
        self._best: dict[int, Tensor] = {}

    @torch.no_grad()
    def measure(self, draft: Eagle3Draft, test: TrainingTimeTest, crew: Crew) -> SimulatedAcceptance:
        """Simulated acceptance over all sequences."""
        counts = self.by_sequence(draft, test, crew)
        survived = [sum(column) for column in zip(*(count.survived for count in counts), strict=True)]
        chains = [sum(column) for column in zip(*(count.chains for count in counts), strict=True)]
        return SimulatedAcceptance(survived, chains)

    @torch.no_grad()
    def by_sequence(self, draft: Eagle3Draft, test: TrainingTimeTest, crew: Crew) -> list[SimulatedAcceptance]:
        """Simulated acceptance of each sequence."""
        return crew.map(lambda index: self._measure(index, draft, test), range(len(self._store)))

    @torch.no_grad()
    def _measure(self, index: int, draft: Eagle3Draft, test: TrainingTimeTest) -> SimulatedAcceptance:
        sequence = self._store.read(index).to(test.embedding.device)
        if index not in self._best:
            self._best[index] = best_ids(sequence.teacher_states().to(self._head.dtype), self._head)
        ids = draft.target_ids()
        guesses = []
        with test.autocast():
            for output, rows in zip(test.unroll(draft, [sequence]), test.counts([sequence]), strict=True):
                guesses.append(ids[best_ids(draft.head_input(output[:rows]), draft.lm_head.weight)])
        return count_survivors(guesses, self._best[index])


@torch.no_grad()
def best_ids(states: Tensor, head: Tensor) -> Tensor:
    """The best row of a head for each state, block by block: (rows, hidden), (vocab, hidden) -> int64 (rows,)."""
    block = max(_BLOCK_SCORES // len(head), 1)
    parts = [product(part, head).argmax(-1) for part in states.split(block)] if len(states) else []
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=states.device)
