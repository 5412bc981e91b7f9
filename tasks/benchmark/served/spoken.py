"""What an engine said to one prompt, and what it counted meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Speculation in numbers. `by_position` is, per place in the chain, the steps that accepted it and all before."""

    verify_steps: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...] | None

    @classmethod
    def of_histogram(cls, histogram: Sequence[int], drafted: int, places: int) -> Counts:
        """From the number of verify steps that accepted 0, 1, 2, ... drafts."""
        by_position = tuple(sum(histogram[place + 1 :]) for place in range(places))
        return cls(sum(histogram), drafted, sum(n * steps for n, steps in enumerate(histogram)), by_position)


@dataclass(frozen=True)
class Spoken:
    """One answer. Seconds count from when it was asked for."""

    output_ids: tuple[int, ...]
    finish_reason: str  # stop or length
    counts: Counts | None  # None where the response does not say
    first_seconds: float
    seconds: float
