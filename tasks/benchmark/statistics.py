"""Figures from ACCEPTANCE rows: acceptance lengths with intervals, rates per position, and greedy identity.

Pure functions of the rows and a seed; every figure of a report comes from here and can be recomputed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.measures import DRAFTERS

_TAIL = 2.5  # per cent on each side of a 95 % interval


@dataclass(frozen=True)
class Acceptance:
    """What one drafter reached at one temperature, over all prompts or one dataset's.

    Attributes:
        length: tokens per verify step, 1 + Σ accepted / Σ verify steps; NaN if there was no verify step.
        low: lower end of the 95 % interval of `length`, by bootstrap over prompts.
        high: its upper end.
        rate: Σ accepted / Σ drafted; NaN if nothing was drafted.
        joint: per position, share of verify steps in which it and all before it were accepted.
        conditional: per position, that share among the steps that accepted all before it; NaN if there were none.
    """

    drafter: str
    temperature: float
    dataset: str | None
    chain: int
    prompts: int
    tokens: int
    verify_steps: int
    length: float
    low: float
    high: float
    rate: float
    joint: tuple[float, ...]
    conditional: tuple[float, ...]

    def exceeds(self, other: Acceptance) -> bool:
        """Whether this interval lies wholly above the other's."""
        return self.low > other.high


@dataclass(frozen=True)
class Difference:
    """A prompt whose greedy output differs from plain decoding, and the first position at which it does."""

    prompt_id: str
    position: int


@dataclass(frozen=True)
class Identity:
    """How a drafter's greedy outputs compare with those of the "none" drafter."""

    drafter: str
    compared: int
    differing: tuple[Difference, ...]

    @property
    def identical(self) -> int:
        """Outputs that are equal token for token."""
        return self.compared - len(self.differing)


@dataclass(frozen=True)
class Measured:
    """All figures of a benchmark; drafters in the order of DRAFTERS, then temperature, then dataset."""

    overall: tuple[Acceptance, ...]
    by_dataset: tuple[Acceptance, ...]
    identity: tuple[Identity, ...]

    def of(self, drafter: str, temperature: float) -> Acceptance | None:
        """The overall figures of one drafter at one temperature, or None if it was not run."""
        found = (a for a in self.overall if a.drafter == drafter and a.temperature == temperature)
        return next(found, None)

    def identity_of(self, drafter: str) -> Identity | None:
        """The greedy identity of one drafter, or None if it was not compared."""
        return next((i for i in self.identity if i.drafter == drafter), None)


def measure(table: pa.Table, bootstrap: int, seed: int) -> Measured:
    """All figures of ACCEPTANCE rows of one or more drafters.

    Args:
        table: rows of contract ACCEPTANCE.
        bootstrap: resamples for the intervals.
        seed: of the resampling.
    """
    rows = table.to_pylist()
    groups = sorted({(DRAFTERS.index(row["drafter"]), row["temperature"]) for row in rows})
    overall, by_dataset = [], []
    for index, temperature in groups:
        drafter = DRAFTERS[index]
        own = [row for row in rows if row["drafter"] == drafter and row["temperature"] == temperature]
        overall.append(acceptance(own, None, bootstrap, seed))
        for dataset in sorted({row["dataset"] for row in own}):
            by_dataset.append(acceptance([r for r in own if r["dataset"] == dataset], dataset, bootstrap, seed))
    return Measured(tuple(overall), tuple(by_dataset), tuple(greedy_identity(rows)))


def acceptance(rows: Sequence[dict[str, Any]], dataset: str | None, bootstrap: int, seed: int) -> Acceptance:
    """The figures of rows of one drafter and temperature, at least one."""
    steps = np.array([row["verify_steps"] for row in rows], dtype=np.int64)
    accepted = np.array([row["accepted"] for row in rows], dtype=np.int64)
    drafted = sum(row["drafted"] for row in rows)
    positions = np.array([row["accepted_by_position"] for row in rows], dtype=np.int64).sum(axis=0)
    low, high = bootstrap_interval(accepted, steps, bootstrap, seed)
    before = [int(steps.sum()), *positions.tolist()]
    return Acceptance(
        drafter=rows[0]["drafter"],
        temperature=rows[0]["temperature"],
        dataset=dataset,
        chain=rows[0]["chain"],
        prompts=len(rows),
        tokens=sum(len(row["output_ids"]) for row in rows),
        verify_steps=int(steps.sum()),
        length=1 + _ratio(int(accepted.sum()), int(steps.sum())),
        low=low,
        high=high,
        rate=_ratio(int(accepted.sum()), drafted),
        joint=tuple(_ratio(count, before[0]) for count in before[1:]),
        conditional=tuple(_ratio(count, given) for given, count in itertools.pairwise(before)),
    )


def bootstrap_interval(accepted: np.ndarray, steps: np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    """The 95 % percentile interval of 1 + Σ accepted / Σ steps, by prompts: the steps of one prompt are alike.

    Args:
        accepted: int64 (prompts,).
        steps: int64 (prompts,).
        resamples: how often the prompts are drawn again.
        seed: of the draws.
    """
    count = len(steps)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    totals = times @ steps
    lengths = 1 + (times @ accepted)[totals > 0] / totals[totals > 0]
    if not len(lengths):
        return math.nan, math.nan
    low, high = np.percentile(lengths, [_TAIL, 100 - _TAIL])
    return float(low), float(high)


def greedy_identity(rows: Iterable[dict[str, Any]]) -> list[Identity]:
    """Each drafter's greedy outputs against those of "none", for prompts that both have; empty without "none"."""
    outputs: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        if row["temperature"] == 0:
            outputs.setdefault(row["drafter"], {})[row["prompt_id"]] = row["output_ids"]
    plain = outputs.pop("none", {})
    compared = []
    for drafter in sorted(outputs, key=DRAFTERS.index):
        shared = sorted(set(plain) & set(outputs[drafter]))
        pairs = ((prompt, first_difference(plain[prompt], outputs[drafter][prompt])) for prompt in shared)
        differing = tuple(Difference(prompt, at) for prompt, at in pairs if at is not None)
        if shared:
            compared.append(Identity(drafter, len(shared), differing))
    return compared


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two outputs differ, None if they are equal."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
