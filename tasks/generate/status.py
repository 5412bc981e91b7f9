"""How far a run's asking is, read from the store while it goes on or after it ended, by any process.

<store>/ledger/<run>/standing.json is written by the run every few seconds: what has to be answered, and what is. Rates
and sums are the ledger's, which has every attempt as it ends.
"""

from __future__ import annotations

import json
import os
import platform
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import StoreError
from tasks.artifacts.files import write_bytes
from tasks.generate.ledger import read_ledger

FILE = "standing.json"
PILOT, FINISHED = "pilot", "finished"  # a phase, and how one can end
_RECENT_MS = 60_000  # of the attempts that tell the pace


@dataclass(frozen=True)
class Standing:
    """What a run says of itself; money in nano-dollars, caps None where there is none."""

    phase: str
    updated_ms: int
    ended: str  # how; empty as long as it goes on
    prompts: dict[str, int]  # by dataset
    done: dict[str, int]
    settled: int
    reserved: int  # in flight, or of unknown bill
    settled_tokens: int
    cap: int | None = None
    cap_tokens: int | None = None
    process: int = field(default_factory=os.getpid)
    host: str = field(default_factory=platform.node)

    def write(self, folder: Path) -> None:
        """Put it where others find it."""
        write_bytes(folder / FILE, json.dumps(asdict(self)).encode())

    @property
    def is_alive(self) -> bool:
        """Whether the run goes on, as far as this machine can tell."""
        if self.ended:
            return False
        if self.host != platform.node():
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            return True
        return True


@dataclass(frozen=True)
class DatasetStatus:
    """One dataset; tokens and money are those of all attempts that the ledger has."""

    name: str
    prompts: int
    done: int
    tokens: int
    cost_nanousd: int
    errors: Mapping[str, int]


@dataclass(frozen=True)
class Status:
    """A run at one moment."""

    standing: Standing
    datasets: tuple[DatasetStatus, ...]
    requests_per_second: float
    tokens_per_second: float
    spent_nanousd: int
    unknown_nanousd: int  # most that attempts of unknown bill cost beside it

    @property
    def left(self) -> int:
        """Prompts without an end."""
        return sum(one.prompts - one.done for one in self.datasets)

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the last minute; None if nothing was answered in it."""
        return self.left / self.requests_per_second if self.requests_per_second else None


def read_status(store: Path, run: str) -> Status:
    """The status of a run by its name.

    Raises:
        StoreError: nothing was asked for this run yet, or what it wrote cannot be read.
    """
    folder = store / "ledger" / run
    try:
        standing = Standing(**json.loads((folder / FILE).read_bytes()))
    except FileNotFoundError as exc:
        raise StoreError(f"{folder} has no run: no server has been asked for {run} yet") from exc
    except (ValueError, TypeError) as exc:
        raise StoreError(f"{folder / FILE} cannot be read: {exc}") from exc
    return status_of(standing, read_ledger(folder))


def status_of(standing: Standing, entries: pa.Table) -> Status:
    """The status that follows from what a run says and from its ledger."""
    tokens: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    errors: defaultdict[str, Counter[str]] = defaultdict(Counter)
    unknown = recent = recent_tokens = 0
    first, last = standing.updated_ms - _RECENT_MS, standing.updated_ms
    for row in entries.to_pylist():
        name, spoken = row["dataset"], row["completion_tokens"] or 0
        tokens[name] += spoken + (row["prompt_tokens"] or 0)
        costs[name] += row["cost_nanousd"] or 0
        unknown += row["worst_nanousd"] if row["cost_nanousd"] is None else 0
        if row["outcome"] != "answered":
            errors[name][row["outcome"]] += 1
        elif first < row["started_ms"] + row["latency_ms"]:
            recent += 1
            recent_tokens += spoken
            last = max(last, row["started_ms"] + row["latency_ms"])
    seconds = _seconds(entries, first, last)
    return Status(
        standing,
        tuple(
            DatasetStatus(name, count, standing.done.get(name, 0), tokens[name], costs[name], dict(errors[name]))
            for name, count in sorted(standing.prompts.items())
        ),
        recent / seconds,
        recent_tokens / seconds,
        costs.total(),
        unknown,
    )


def _seconds(entries: pa.Table, first: int, last: int) -> float:
    """Of the last minute, the part since the first attempt of all."""
    started: list[Any] = entries["started_ms"].to_pylist()
    return max(1.0, (last - max(first, min(started, default=last))) / 1000)
