"""Which prompts a pilot asks, what is left to be asked once it is answered, and the forecast that follows from both.

Nothing is asked here: what is paid for is read, as dispatch.py and the result's writer read it.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from schemas.forecast import FORECAST
from tasks.generate.dispatch import Partition
from tasks.generate.forecast import Forecast, Pilot, Range, forecast
from tasks.generate.history import texts_of
from tasks.generate.paid import PaidAnswer, PaidAnswers
from tasks.generate.serve.job import Job
from tasks.generate.serve.reading import read, take
from tasks.generate.turns import Turns

ALL = ""  # the row of the whole run
_FEWEST = 2  # answers that tell anything of their spread
_BYTES_PER_TOKEN = 8  # of a body that nobody has seen: text and its frame

_log = logging.getLogger("eyas.generate")


@dataclass
class Left:
    """The turns of one dataset that are still to be asked."""

    limit: int = 0
    prompt_tokens: list[int] = field(default_factory=list)  # answers that do not exist yet left out
    answers_before: list[int] = field(default_factory=list)  # how many of those there are, in the same order
    worst_tokens: int = 0  # of the longest prompt, as a reservation counts it


@dataclass
class Sample:
    """The pilot's answers of one dataset."""

    completion_tokens: list[int] = field(default_factory=list)
    body_bytes: list[int] = field(default_factory=list)
    prompt_tokens: int = 0  # in all, as we count them
    billed_prompt_tokens: int = 0  # of the same, as they were billed
    price_nanousd: int = 0  # at the price that is listed
    cost_nanousd: int = 0  # as they were billed


@dataclass(frozen=True)
class Speeds:
    """Completion tokens per second: as requests at full concurrency would add up, and as they did add up."""

    each: float
    measured: float


def pilot_of(partitions: Sequence[Partition], prompts: int) -> list[Partition]:
    """The first conversations of each dataset that have `prompts` turns together.

    They come in the order of a hash of what they ask, so that the first are a random sample, and the same one whenever
    it is taken; of a dataset that has grown the sample changes only where a new prompt is among the first.
    """
    taken: Counter[str] = Counter()
    found = []
    for partition in partitions:
        names, bounds = partition.table["dataset"], []
        for start, stop in partition.bounds:
            counts = Counter(names[start:stop].to_pylist())
            if any(taken[name] < prompts for name in counts):
                bounds.append((start, stop))
                taken.update(counts)
        found.append(replace(partition, bounds=bounds))
    return found


def left_of(job: Job, partitions: Sequence[Partition], paid: PaidAnswers) -> dict[str, Left]:
    """What is still to be asked, by dataset; a dataset of which nothing is left is not named."""
    found: defaultdict[str, Left] = defaultdict(Left)
    for met in _walk(job, partitions, paid, bodies=False):
        if not met.is_paid:
            left = found[met.dataset]
            left.limit = max(left.limit, met.limit)
            left.prompt_tokens.append(met.prompt_tokens)
            left.answers_before.append(met.answers_before)
            left.worst_tokens = max(left.worst_tokens, met.worst_tokens + met.answers_before * met.limit)
    return dict(found)


def sample_of(job: Job, pilot: Sequence[Partition], paid: PaidAnswers) -> dict[str, Sample]:
    """Tokens and bytes of the pilot's answers, by dataset."""
    found: defaultdict[str, Sample] = defaultdict(Sample)
    for met in _walk(job, pilot, paid, bodies=True):
        if met.answer and met.answer.meta.completion_tokens is not None:
            meta, sample = met.answer.meta, found[met.dataset]
            sample.completion_tokens.append(met.answer.meta.completion_tokens)
            sample.body_bytes.append(len(met.answer.body))
            billed = met.prompt_tokens if meta.prompt_tokens is None else meta.prompt_tokens
            sample.prompt_tokens += met.prompt_tokens
            sample.billed_prompt_tokens += billed
            listed = job.survey.price.cost_nanousd(billed, met.answer.meta.completion_tokens)
            sample.price_nanousd += listed
            sample.cost_nanousd += listed if meta.cost_nanousd is None else meta.cost_nanousd
    return dict(found)


def speeds_of(entries: pa.Table, in_flight: int) -> Speeds | None:
    """What the timed attempts of a run show, for so many requests in flight; None if there are none.

    Args:
        entries: contract LEDGER.
        in_flight: as many as there will be.
    """
    rows = [row for row in entries.to_pylist() if row["outcome"] == "answered" and row["completion_tokens"]]
    waited = sum(row["latency_ms"] for row in rows) / 1000
    busy = _busy_seconds(rows)
    if not rows or not waited or not busy:
        return None
    tokens = sum(row["completion_tokens"] for row in rows)
    return Speeds(tokens / waited * in_flight, tokens / busy)


def forecast_table(
    job: Job, left: Mapping[str, Left], samples: Mapping[str, Sample], speeds: Speeds | None, seed: int
) -> pa.Table:
    """The forecast of each dataset of which something is left, and of the run, contract FORECAST."""
    pilots = {name: _pilot(job, name, one, samples.get(name, Sample())) for name, one in sorted(left.items())}
    fastest = max(speeds.each, speeds.measured) if speeds else None
    slowest = min(speeds.each, speeds.measured) if speeds else None
    named, run = forecast(pilots, fastest, seed=seed, slowest=slowest)
    return FORECAST.table([_row(name, one) for name, one in [*named.items(), (ALL, run)]], "forecast")


def worst_request(job: Job, left: Mapping[str, Left]) -> int:
    """Nano-dollars that the dearest of the requests that are left can cost."""
    price = job.survey.price
    return max((price.worst_nanousd(one.worst_tokens, one.limit) for one in left.values()), default=0)


@dataclass(frozen=True)
class _Met:
    """One turn on the way through all conversations."""

    dataset: str
    limit: int
    prompt_tokens: int
    worst_tokens: int
    answers_before: int = 0  # which are not known yet
    is_paid: bool = False
    answer: PaidAnswer | None = None


def _walk(job: Job, partitions: Sequence[Partition], paid: PaidAnswers, *, bodies: bool) -> Iterator[_Met]:
    """Every turn that is asked or would be, each request once; those that cannot be asked are left out."""
    seen: set[str] = set()
    for partition in partitions:
        limit = partition.spec.max_tokens
        for start, stop in partition.bounds:
            turns = job.means.turns(partition.table.slice(start, stop - start), limit)
            unknown: dict[str, _Met] = {}
            for level in range(turns.levels):
                for prompt in turns.ready(level):
                    asked = turns.asked[prompt.prompt_id]
                    key = job.key(asked, limit)
                    follows = turns.has_followers(prompt.prompt_id)
                    found = paid.get(key) if bodies or follows else None
                    if found and follows:
                        take(job, turns, read(job, asked, found.meta, found.body, limit))
                    count, worst = len(prompt.ids), job.worst_prompt(asked)
                    met = _Met(prompt.dataset, limit, count, worst, 0, found is not None or key in paid, found)
                    if not met.is_paid:
                        unknown[prompt.prompt_id] = met
                    if key not in seen:
                        seen.add(key)
                        yield met
                yield from _later(job, turns, level, unknown)


def _later(job: Job, turns: Turns, level: int, unknown: dict[str, _Met]) -> Iterator[_Met]:
    """The turns of a level that wait for an answer which nobody has: their prompts are known but for that."""
    for row in turns.rows:
        if row["turn"] == level and (before := unknown.get(row["parent_id"])):
            texts = list(texts_of({"messages": json.loads(row["messages"])}))
            more = sum(map(len, job.means.codec.encode(texts)))  # names of fields too, which stand for the template
            met = replace(
                before,
                dataset=row["dataset"],
                prompt_tokens=before.prompt_tokens + more,
                worst_tokens=before.worst_tokens + more,
                answers_before=before.answers_before + 1,
            )
            unknown[row["prompt_id"]] = met
            yield met


def _pilot(job: Job, name: str, left: Left, sample: Sample) -> Pilot:
    tokens, sizes = sample.completion_tokens, sample.body_bytes
    if len(tokens) < _FEWEST:
        _log.warning(
            "the pilot has %d answers of %s, too few for a forecast: every answer is taken to have all %d tokens",
            len(tokens),
            name,
            left.limit,
        )
        tokens, sizes = [left.limit] * _FEWEST, [left.limit * _BYTES_PER_TOKEN] * _FEWEST
    mean = sum(tokens) / len(tokens)
    share = sample.billed_prompt_tokens / sample.prompt_tokens if sample.prompt_tokens else 1.0
    prompts = [
        round((count + before * mean) * share)
        for count, before in zip(left.prompt_tokens, left.answers_before, strict=True)
    ]
    paid = sample.cost_nanousd / sample.price_nanousd if sample.price_nanousd else 1.0
    return Pilot(prompts, tokens, sizes, left.limit, job.survey.price, paid)


def _busy_seconds(rows: Sequence[Mapping[str, Any]]) -> float:
    """Time in which at least one of these attempts was under way."""
    busy = end = 0
    for start, length in sorted((row["started_ms"], row["latency_ms"]) for row in rows):
        busy += max(0, start + length - max(start, end))
        end = max(end, start + length)
    return busy / 1000


def _row(name: str, one: Forecast) -> dict[str, Any]:
    row: dict[str, Any] = {
        "dataset": name,
        "prompts": one.prompts,
        "pilot": one.pilot,
        "at_limit": one.at_limit,
        "prompt_tokens": one.prompt_tokens,
        "usd_worst": one.usd_worst,
    }
    row |= _cells("completion_tokens", one.completion_tokens) | _cells("usd", one.usd)
    return row | _cells("hours", one.hours) | _cells("bytes", one.bytes_on_disk)


def _cells(column: str, found: Range | None) -> dict[str, float | None]:
    low, expected, high = (found.low, found.expected, found.high) if found else (None, None, None)
    return {column: expected, f"{column}_low": low, f"{column}_high": high}
