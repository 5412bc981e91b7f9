"""Simulated acceptance of a trained draft by dataset and by context length: rows of SIMULATED."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.train.simulated import SequenceChains, Survey

_FIRST_EDGE = 128  # tokens; each range of context lengths is as long as all before it


def simulated_rows(
    chains: Sequence[SequenceChains], dataset_of: Mapping[str, str], resamples: int, seed: int
) -> list[dict[str, Any]]:
    """One row for all chains, one per dataset, one per range of context lengths.

    Args:
        chains: of every held-out sequence.
        dataset_of: the dataset of a sequence, by its id.
        resamples: for the intervals.
        seed: of the resampling.
    """
    groups = [("all", "", list(chains), None)]
    for dataset in sorted({dataset_of[one.name] for one in chains}):
        groups.append(("dataset", dataset, [one for one in chains if dataset_of[one.name] == dataset], None))
    longest = max((one.first_context + len(one.alive[0]) for one in chains), default=0)
    groups += [("context", f"{part.start} to {part.stop - 1}", list(chains), part) for part in context_ranges(longest)]
    rows = []
    for group, name, members, part in groups:
        counts = [count for one in members if (count := one.count(part)).chains[0]]
        if counts:
            rows.append(_row(group, name, Survey(counts), resamples, seed))
    return rows


def context_ranges(longest: int) -> Iterator[range]:
    """Ranges of numbers of tokens up to `longest`: 0 to 127, 128 to 255, 256 to 511, ..."""
    start, stop = 0, _FIRST_EDGE
    while start < longest:
        yield range(start, stop)
        start, stop = stop, 2 * stop


def _row(group: str, name: str, survey: Survey, resamples: int, seed: int) -> dict[str, Any]:
    total = survey.total()
    low, high = survey.interval(resamples, seed)
    return {
        "group": group,
        "name": name,
        "sequences": len(survey.counts),
        "survived": total.survived,
        "chains": total.chains,
        "length": total.length,
        "low": low,
        "high": high,
    }
