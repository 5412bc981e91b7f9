"""Figures of a benchmark in engines, all from rows of SERVED and SERVED_PASS: acceptance, speed, and what both gain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.served import DRAFTERS_SERVED, ENGINES
from tasks.benchmark.statistics import bootstrap_interval

ALL = ""  # the dataset or bucket of figures over all prompts

Row = dict[str, Any]


class Place(NamedTuple):
    """Where figures come from."""

    engine: str
    drafter: str
    steps: int
    top_k: int
    draft_tokens: int
    temperature: float
    concurrency: int

    @classmethod
    def of(cls, row: Row) -> Place:
        """Of a row of either contract."""
        return cls(*(row[name] for name in cls._fields))

    @property
    def speculation(self) -> str:
        """Such as 3/1/4; nothing without a drafter."""
        return f"{self.steps}/{self.top_k}/{self.draft_tokens}" if self.steps else ""

    @property
    def label(self) -> str:
        """Engine, drafter and setting of speculation."""
        return " ".join(part for part in (self.engine, self.drafter, self.speculation) if part)

    @property
    def order(self) -> tuple[Any, ...]:
        """Engines and drafters in the order of the contracts."""
        return (ENGINES.index(self.engine), DRAFTERS_SERVED.index(self.drafter), *self[2:])

    @property
    def plain(self) -> Place:
        """The same without a drafter."""
        return Place(self.engine, "none", 0, 0, 0, self.temperature, self.concurrency)


@dataclass(frozen=True)
class Figures:
    """What one place reached, over all prompts, one dataset's, or one bucket of prompt lengths.

    Attributes:
        length: tokens per verify step, 1 + Σ accepted / Σ verify steps; NaN where nothing was counted.
        low: lower end of its 95 % interval, by bootstrap over prompts; NaN where counts are not known per prompt.
        high: its upper end.
        rate: Σ accepted / Σ drafted.
        joint: per position, share of verify steps that accepted it and all before it; empty if not known.
        conditional: that share among the steps that accepted all before it.
        histogram: verify steps by how many drafts they accepted, from 0 on; empty if not known.
        tokens_per_second: new tokens per second of all requests together; of a whole pass only, else NaN.
        first_seconds: median time to the first token.
        between_seconds: mean time between tokens.
        speed_up: tokens per second against the same without a drafter; NaN where that was not run.
        speed_low: lower end of its 95 % interval, by bootstrap over prompts.
        speed_high: its upper end.
    """

    place: Place
    dataset: str
    bucket: str
    prompts: int
    tokens: int
    verify_steps: int
    accepted: int
    drafted: int
    length: float
    low: float
    high: float
    rate: float
    joint: tuple[float, ...]
    conditional: tuple[float, ...]
    histogram: tuple[int, ...]
    tokens_per_second: float
    first_seconds: float
    between_seconds: float
    speed_up: float
    speed_low: float
    speed_high: float


@dataclass(frozen=True)
class Served:
    """All figures; places in their order."""

    overall: tuple[Figures, ...]
    by_dataset: tuple[Figures, ...]
    by_context: tuple[Figures, ...]

    def of(self, place: Place) -> Figures | None:
        """The figures over all prompts of one place, None if it was not run."""
        return next((one for one in self.overall if one.place == place), None)


def served_figures(answers: pa.Table, passes: pa.Table, edges: Sequence[int], resamples: int, seed: int) -> Served:
    """All figures of rows of one or more runs.

    Args:
        answers: contract SERVED.
        passes: contract SERVED_PASS.
        edges: prompt lengths at which buckets begin.
        resamples: for the intervals.
        seed: of the resampling.
    """
    rows: dict[Place, list[Row]] = {}
    for row in answers.to_pylist():
        rows.setdefault(Place.of(row), []).append(row)
    summaries = {Place.of(row): row for row in passes.to_pylist()}
    places = sorted(rows, key=lambda place: place.order)

    def split(of: Callable[[Row], str]) -> Iterable[tuple[Place, str, list[Row], list[Row]]]:
        for place in places:
            plain = rows.get(place.plain, [])
            for name in sorted({of(row) for row in rows[place]}, key=_number_first):
                yield (
                    place,
                    name,
                    [row for row in rows[place] if of(row) == name],
                    [row for row in plain if of(row) == name],
                )

    def bucket(row: Row) -> str:
        return bucket_of(len(row["prompt_ids"]), edges)

    return Served(
        tuple(
            _figures(place, ALL, ALL, rows[place], rows.get(place.plain, []), summaries, resamples, seed)
            for place in places
        ),
        tuple(
            _figures(place, name, ALL, own, plain, {}, resamples, seed)
            for place, name, own, plain in split(lambda row: row["dataset"])
        ),
        tuple(_figures(place, ALL, name, own, plain, {}, resamples, seed) for place, name, own, plain in split(bucket)),
    )


def bucket_of(length: int, edges: Sequence[int]) -> str:
    """The bucket of a prompt length, such as "512 to 2047"."""
    ordered = [0, *sorted(edges)]
    place = max(index for index, edge in enumerate(ordered) if edge <= length)
    return f"{ordered[place]} to {ordered[place + 1] - 1}" if place + 1 < len(ordered) else f"{ordered[place]} or more"


def _number_first(name: str) -> tuple[int, str]:
    head = name.split(maxsplit=1)[0] if name else ""
    return (int(head), "") if head.isdecimal() else (0, name)


def _figures(
    place: Place,
    dataset: str,
    bucket: str,
    rows: Sequence[Row],
    plain: Sequence[Row],
    summaries: dict[Place, Row],
    resamples: int,
    seed: int,
) -> Figures:
    summary = summaries.get(place)
    counted = [row for row in rows if row["verify_steps"] is not None] if place.steps else []
    whole = len(counted) == len(rows)
    of_pass = [summary] if summary and summary["verify_steps"] is not None and not whole else []
    totals = counted if whole else of_pass
    steps, accepted = _sum(totals, "verify_steps"), _sum(totals, "accepted")
    low, high = math.nan, math.nan
    if whole and steps:
        low, high = bootstrap_interval(_array(counted, "accepted"), _array(counted, "verify_steps"), resamples, seed)
    by_position = _by_position(totals, place.steps)
    before = [steps, *by_position]
    speed = summary["tokens"] / summary["seconds"] if summary and summary["seconds"] else math.nan
    plain_summary = summaries.get(place.plain)
    speed_up = math.nan
    if place.steps and plain_summary and plain_summary["seconds"] and plain_summary["tokens"]:
        speed_up = speed * plain_summary["seconds"] / plain_summary["tokens"]
    elif place.steps and plain:
        speed_up = _rate(rows) / _rate(plain)
    speed_low, speed_high = _speed_interval(rows, plain, resamples, seed) if place.steps else (math.nan, math.nan)
    return Figures(
        place=place,
        dataset=dataset,
        bucket=bucket,
        prompts=len(rows),
        tokens=sum(len(row["output_ids"]) for row in rows),
        verify_steps=steps,
        accepted=accepted,
        drafted=_sum(totals, "drafted"),
        length=1 + accepted / steps if steps else math.nan,
        low=low,
        high=high,
        rate=_ratio(accepted, _sum(totals, "drafted")),
        joint=tuple(_ratio(count, steps) for count in by_position),
        conditional=tuple(_ratio(count, given) for given, count in itertools.pairwise(before)),
        histogram=tuple(one - other for one, other in itertools.pairwise([*before, 0])) if by_position else (),
        tokens_per_second=speed,
        first_seconds=median(row["first_seconds"] for row in rows),
        between_seconds=_between(rows),
        speed_up=speed_up,
        speed_low=speed_low,
        speed_high=speed_high,
    )


def _by_position(rows: Sequence[Row], places: int) -> list[int]:
    lists = [row["accepted_by_position"] for row in rows]
    if not lists or any(one is None for one in lists):
        return []
    return [sum(one[place] for one in lists) for place in range(places)]


def _between(rows: Sequence[Row]) -> float:
    gaps = sum(len(row["output_ids"]) - 1 for row in rows)
    return sum(row["seconds"] - row["first_seconds"] for row in rows) / gaps if gaps else math.nan


def _rate(rows: Sequence[Row]) -> float:
    seconds = sum(row["seconds"] for row in rows)
    return sum(len(row["output_ids"]) for row in rows) / seconds if seconds else math.nan


def _speed_interval(rows: Sequence[Row], plain: Sequence[Row], resamples: int, seed: int) -> tuple[float, float]:
    """The 95 % interval of the ratio of both rates of tokens, prompts drawn again in pairs."""
    without = {row["prompt_id"]: row for row in plain}
    pairs = [(row, without[row["prompt_id"]]) for row in rows if row["prompt_id"] in without]
    if len(pairs) < 2:
        return math.nan, math.nan
    values = np.array(
        [[len(a["output_ids"]), a["seconds"], len(b["output_ids"]), b["seconds"]] for a, b in pairs], dtype=float
    )
    count = len(pairs)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    tokens, seconds, plain_tokens, plain_seconds = (times @ values).T
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (tokens / seconds) / (plain_tokens / plain_seconds)
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return math.nan, math.nan
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def _array(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=np.int64)


def _sum(rows: Sequence[Row], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
