"""Simulated acceptance: what a chain of drafts would get from an engine, read off held-out sequences without decoding.

A chain at row t survives step i iff all its guesses 0..i are the target's best token in the full vocabulary, so a
target token outside the draft vocabulary counts as missed. Later steps are fed with the answer's own tokens, as in
training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tasks.draft.linear import product
from tasks.draft.model import Eagle3Draft
from tasks.train.gradient import Crew
from tasks.train.loader import SequenceSource
from tasks.train.objective import TrainingTimeTest
from tasks.train.top_tokens import TopRows

_BLOCK_SCORES = 2**23
_TAIL = 2.5  # per cent on each side of a 95 % interval


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


@dataclass(frozen=True)
class SequenceChains:
    """The chains of one held-out sequence, one per served row."""

    name: str
    first_context: int  # tokens that the first row's guess follows; each row's is one more than the one before
    alive: list[Tensor]  # per step i bool (rows - i,): whether the row's guesses 0..i are all right

    def count(self, part: range | None = None) -> SimulatedAcceptance:
        """Counts of all rows, or of those whose guess follows a number of tokens in `part`."""
        survived, chains = [], []
        for alive in self.alive:
            chosen = alive
            if part is not None:
                chosen = alive[max(part.start - self.first_context, 0) : max(part.stop - self.first_context, 0)]
            survived.append(int(chosen.sum()))
            chains.append(len(chosen))
        return SimulatedAcceptance(survived, chains)


@dataclass(frozen=True)
class Survey:
    """Counts of several sequences, or of a part of each."""

    counts: list[SimulatedAcceptance]

    def total(self) -> SimulatedAcceptance:
        """All together."""
        survived = [sum(column) for column in zip(*(count.survived for count in self.counts), strict=True)]
        chains = [sum(column) for column in zip(*(count.chains for count in self.counts), strict=True)]
        return SimulatedAcceptance(survived, chains)

    def interval(self, resamples: int, seed: int) -> tuple[float, float]:
        """The 95 % percentile interval of the length, by bootstrap over sequences: chains of one sequence are alike."""
        survived = np.array([count.survived for count in self.counts])  # (sequences, steps)
        chains = np.array([count.chains for count in self.counts])
        number = len(self.counts)
        times = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=resamples)
        lengths = 1 + (times @ survived / np.maximum(times @ chains, 1)).sum(axis=1)
        low, high = np.percentile(lengths, [_TAIL, 100 - _TAIL])
        return float(low), float(high)


def surviving(guesses: list[Tensor], best: Tensor) -> list[Tensor]:
    """Which chains of one sequence are alive after each step, bool (rows - i,).

    Args:
        guesses: per step i int64 (rows - i,), target ids; row r guesses the token that `best[r + i]` is.
        best: int64 (rows,), the target's best ids.
    """
    found = []
    alive = torch.ones_like(best, dtype=torch.bool)
    for step, guess in enumerate(guesses):
        alive = alive[: len(guess)] & (guess == best[step : step + len(guess)])
        found.append(alive)
    return found


class HeldOut:
    """Measures a draft on held-out sequences, which are read anew each time; the target's best ids are kept."""

    def __init__(self, store: SequenceSource, head: Tensor) -> None:
        self._store, self._head = store, head
        self._best: dict[int, Tensor] = {}

    def measure(self, draft: Eagle3Draft, test: TrainingTimeTest, crew: Crew) -> SimulatedAcceptance:
        """Simulated acceptance over all sequences."""
        return self.survey(draft, test, crew).total()

    def survey(self, draft: Eagle3Draft, test: TrainingTimeTest, crew: Crew) -> Survey:
        """The counts of all sequences."""
        return Survey(self.by_sequence(draft, test, crew))

    def by_sequence(self, draft: Eagle3Draft, test: TrainingTimeTest, crew: Crew) -> list[SimulatedAcceptance]:
        """Simulated acceptance of each sequence."""
        return [chains.count() for chains in self.chains(draft, test, crew)]

    def chains(self, draft: Eagle3Draft, test: TrainingTimeTest, crew: Crew) -> list[SequenceChains]:
        """The chains of each sequence."""
        return crew.map(lambda index: self._chains(index, draft, test), range(len(self._store)))

    @torch.no_grad()
    def _chains(self, index: int, draft: Eagle3Draft, test: TrainingTimeTest) -> SequenceChains:
        sequence = self._store.read(index).to(test.embedding.device)
        if index not in self._best:
            taught = sequence.teacher(self._head.dtype)
            self._best[index] = taught.best if isinstance(taught, TopRows) else best_ids(taught, self._head)
        ids = draft.target_ids()
        guesses = []
        with test.autocast():
            for output, rows in zip(test.unroll(draft, [sequence]), test.counts([sequence]), strict=True):
                guesses.append(ids[best_ids(draft.head_input(output[:rows]), draft.lm_head.weight)])
        alive = [step.cpu() for step in surviving(guesses, self._best[index])]
        return SequenceChains(sequence.name, sequence.prompt_length + 1, alive)


@torch.no_grad()
def best_ids(states: Tensor, head: Tensor) -> Tensor:
    """The best row of a head for each state, block by block: (rows, hidden), (vocab, hidden) -> int64 (rows,)."""
    block = max(_BLOCK_SCORES // len(head), 1)
    parts = [product(part, head).argmax(-1) for part in states.split(block)] if len(states) else []
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=states.device)
