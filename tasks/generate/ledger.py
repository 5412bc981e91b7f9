"""The ledger: one row per attempt, whatever became of it, in exact money; totals, and whether they explain the bill.

<store>/ledger/<run>/NNNNNNNN.log and .parquet, as with paid answers. An entry outlives a kill of this process as soon
as `record` returns, and a power cut some milliseconds later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from schemas.ledger import LEDGER
from tasks.generate.durable import Damage, DurableLog, Record, lock_folder, scan, segment_path, segments_in
from tasks.generate.parts import (
    Part,
    finish_compaction,
    numbers_in,
    part_path,
    parts_in,
    retire_segment,
    segment_rows,
    write_part,
)
from tasks.generate.prices import NANO, nanousd

if TYPE_CHECKING:
    from tasks.generate.http.client import Attempt

_SEGMENT_BYTES = 32 * 2**20
_CENT = NANO // 100

Billed = Literal["yes", "no", "unknown"]
Verdict = Literal["agrees", "explained", "differs"]


@dataclass(frozen=True)
class Entry:
    """One attempt, under the names of contract LEDGER."""

    attempt_id: str
    key: str
    dataset: str
    endpoint: str
    outcome: str
    billed: Billed
    worst_nanousd: int
    cost_nanousd: int | None
    started_ms: int
    latency_ms: int
    retry: int = 0
    provider: str | None = None
    model: str | None = None
    quantization: str | None = None
    generation_id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False
    detail: str = ""
    status: int | None = None

    def __post_init__(self) -> None:
        if (self.billed != "unknown" and self.cost_nanousd is None) or (self.billed == "no" and self.cost_nanousd):
            raise ValueError(f"attempt {self.attempt_id}: billed {self.billed}, cost {self.cost_nanousd}")


def entry_of(
    attempt: Attempt, attempt_id: str, dataset: str, worst_nanousd: int, *, estimate_nanousd: int | None = None
) -> Entry:
    """The entry of a client's attempt. An estimate stands in for a cost that the answer does not give.

    Raises:
        ValueError: it was billed, and neither the answer nor the caller says how much.
    """
    facts = attempt.facts
    cost = None if facts.cost_usd is None else nanousd(facts.cost_usd)
    estimated = attempt.billed == "yes" and cost is None
    if attempt.billed == "no":
        cost = 0
    elif attempt.billed == "unknown":
        cost = None
    elif cost is None:
        if estimate_nanousd is None:
            raise ValueError(f"attempt {attempt_id} was billed, but its answer has no cost: estimate it")
        cost = estimate_nanousd
    return Entry(
        attempt_id=attempt_id,
        key=attempt.key,
        dataset=dataset,
        endpoint=attempt.endpoint,
        outcome=attempt.outcome,
        billed=attempt.billed,
        worst_nanousd=worst_nanousd,
        cost_nanousd=cost,
        started_ms=int(attempt.started * 1000),
        latency_ms=max(0, round(attempt.latency * 1000)),
        retry=attempt.retry,
        provider=facts.provider,
        model=facts.model,
        quantization=facts.quantization,
        generation_id=facts.generation_id,
        prompt_tokens=facts.prompt_tokens,
        completion_tokens=facts.completion_tokens,
        reasoning_tokens=getattr(facts, "reasoning_tokens", None),
        estimated=estimated,
        detail=attempt.detail,
        status=attempt.status,
    )


class Ledger:
    """The one writer of a ledger. Safe from threads and event loops."""

    def __init__(self, folder: Path, *, wait_seconds: float = 0, segment_bytes: int = _SEGMENT_BYTES) -> None:
        """Open, or create.

        Raises:
            StoreError: another process writes it.
        """
        self.folder = folder
        self._lock_file = lock_folder(folder, wait_seconds)
        try:
            finish_compaction(folder)
            self._log = DurableLog(
                folder,
                lambda record: None,
                segment_bytes=segment_bytes,
                at_once=True,
                least=max(numbers_in(folder), default=0) + 1,
            )
        except BaseException:
            os.close(self._lock_file)
            raise

    @property
    def damage(self) -> list[Damage]:
        """Stretches that were no whole entries when this was opened."""
        return self._log.damage

    def record(self, entry: Entry) -> Future[int]:
        """Add an entry; the future is done when it is on disk. A later one with the same attempt_id takes its place."""
        return self._log.submit(json.dumps(asdict(entry), separators=(",", ":"), ensure_ascii=True).encode())

    def compact(self) -> int:
        """Move the entries into Parquet; returns how many moved. Not while another thread compacts."""
        self._log.roll()
        moved = 0
        for segment in self._log.closed_segments:
            rows = (json.loads(record.payload) for record in segment_rows(self.folder, segment))
            moved += write_part(self.folder, segment, LEDGER, rows)
            retire_segment(self.folder, segment)
        return moved

    def close(self) -> None:
        """Write what was recorded, free the lock."""
        self._log.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_ledger(folder: Path) -> pa.Table:
    """The newest entry of each attempt, oldest first, of contract LEDGER; also while a writer adds to them.

    Raises:
        ArtifactInvalid: a part is not readable.
        ContractViolation: an entry breaks the contract.
    """
    tables: dict[int, pa.Table] = {}
    for segment in segments_in(folder):
        try:
            content = segment_path(folder, segment).read_bytes()
        except FileNotFoundError:  # just made a part
            continue
        rows = [json.loads(item.payload) for item in scan(content, segment) if isinstance(item, Record)]
        tables[segment] = LEDGER.table(rows, str(folder))
    for segment in parts_in(folder):
        tables[segment] = Part(part_path(folder, segment)).table()
    table = pa.concat_tables([tables[segment] for segment in sorted(tables)] or [LEDGER.table([])])
    newest = {name: row for row, name in enumerate(table["attempt_id"].to_pylist())}
    return table if len(newest) == len(table) else table.take(sorted(newest.values()))


@dataclass(frozen=True)
class Sum:
    """Attempts added up."""

    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nanousd: int = 0
    estimated: int = 0  # attempts whose tokens or cost were counted by us
    unknown: int = 0  # attempts whose bill nobody knows
    unknown_nanousd: int = 0  # what these may have cost at most


def totals(table: pa.Table, by: Literal["dataset", "provider", "outcome", "endpoint"]) -> dict[str, Sum]:
    """Sums by the values of a column; what has no value is under ""."""
    return _sums(table, lambda row: row[by] or "")


def total(table: pa.Table) -> Sum:
    """The sum of all attempts."""
    return _sums(table, lambda row: "").get("", Sum())


@dataclass(frozen=True)
class Reconciliation:
    """What the account says was spent, and what the ledger says of it."""

    account_nanousd: int
    ledger_nanousd: int
    unknown: tuple[dict[str, Any], ...] = field(default=())  # attempts that may explain the difference
    unknown_nanousd: int = 0  # what these cost at most
    estimated_nanousd: int = 0  # part of the ledger's sum that was estimated

    @property
    def difference(self) -> int:
        """Account less ledger, in nano-dollars."""
        return self.account_nanousd - self.ledger_nanousd

    @property
    def agrees(self) -> bool:
        """The sums are equal to the cent."""
        return abs(self.difference) < _CENT

    @property
    def explained(self) -> bool:
        """They are equal to the cent, or estimates and attempts of unknown bill can make up the difference."""
        return -self.estimated_nanousd - _CENT < self.difference < self.unknown_nanousd + self.estimated_nanousd + _CENT

    @property
    def verdict(self) -> Verdict:
        """Which of these it is; only what differs needs a person."""
        return "agrees" if self.agrees else "explained" if self.explained else "differs"


def reconcile(
    table: pa.Table,
    account_before: float | str,
    account_after: float | str,
    in_flight: Mapping[str, int] | None = None,
) -> Reconciliation:
    """Compare the ledger with the dollars that the provider's account had used before and after it.

    Args:
        table: the ledger between the two readings.
        account_before: dollars used, as the account said.
        account_after: the same, afterwards.
        in_flight: reservations without an entry, from the budget: id and worst cost; sent when a run was killed.
    """
    summed = total(table)
    rows = table.filter(pc.call_function("equal", [table["billed"], "unknown"])).to_pylist()
    ids = set(table["attempt_id"].to_pylist())
    killed = {name: worst for name, worst in (in_flight or {}).items() if name not in ids}
    unknown = [
        *({name: row[name] for name in _UNKNOWN} for row in rows),
        *(
            dict.fromkeys(_UNKNOWN) | {"attempt_id": name, "outcome": "in flight at a kill", "worst_nanousd": worst}
            for name, worst in killed.items()
        ),
    ]
    estimated = table.filter(table["estimated"])
    return Reconciliation(
        nanousd(account_after) - nanousd(account_before),
        summed.cost_nanousd,
        tuple(unknown),
        summed.unknown_nanousd + sum(killed.values()),
        sum(cost or 0 for cost in estimated["cost_nanousd"].to_pylist()),
    )


_UNKNOWN = ("attempt_id", "dataset", "endpoint", "provider", "generation_id", "outcome", "worst_nanousd")


def _sums(table: pa.Table, name_of: Callable[[Mapping[str, Any]], str]) -> dict[str, Sum]:
    found: dict[str, list[int]] = {}
    for row in _rows(table):
        unknown = row["billed"] == "unknown"
        numbers = found.setdefault(name_of(row), [0] * 7)
        for place, amount in enumerate(
            (
                1,
                row["prompt_tokens"] or 0,
                row["completion_tokens"] or 0,
                row["cost_nanousd"] or 0,
                int(row["estimated"]),
                int(unknown),
                row["worst_nanousd"] if unknown and row["cost_nanousd"] is None else 0,
            )
        ):
            numbers[place] += amount
    return {name: Sum(*numbers) for name, numbers in sorted(found.items())}


def _rows(table: pa.Table) -> Iterable[Mapping[str, Any]]:
    columns = ["dataset", "provider", "outcome", "endpoint", "billed", "prompt_tokens", "completion_tokens"]
    columns += ["cost_nanousd", "estimated", "worst_nanousd"]
    for batch in table.select(columns).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()
