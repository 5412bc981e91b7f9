"""A pipeline of three small artifact tasks that notes which bodies ran, for tests of persistence and resume."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pandera.pandas as pandera
import pyarrow as pa
from prefect import flow, unmapped

from schemas.contract import Contract
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.serializer import ParquetSerializer
from tasks.artifacts.task import artifact_task, workspace

NUMBERS = Contract(
    "test_numbers",
    pa.schema([pa.field("value", pa.int64(), nullable=False)]),
    pandera.DataFrameSchema({"value": pandera.Column("int64", pandera.Check.ge(0))}),
)

ran: list[str] = []  # the bodies that ran, in this process
broken: set[str] = set()  # the tasks that raise
incomplete: set[str] = set()  # the tasks whose result is provisional


def note(task: str) -> None:
    """Remember that a body ran, also for other processes; raise if the task is to be broken."""
    ran.append(task)
    if log := os.environ.get("EYAS_TEST_LOG"):
        with open(log, "a") as handle:
            handle.write(f"{task}\n")
    if task in broken:
        raise RuntimeError(f"{task} is broken")


@artifact_task(version="1")
def count(upto: int, shard_rows: int) -> Shards:
    """The numbers below `upto`, in shards."""
    note("count")
    folder = workspace()
    for position, start in enumerate(range(0, upto, shard_rows)):
        rows = [{"value": value} for value in range(start, min(start + shard_rows, upto))]
        folder.add_table("numbers", f"numbers-{position:05}.parquet", NUMBERS.table(rows), NUMBERS)
    facts, measures = {"upto": upto}, {"seconds": time.perf_counter()}
    return folder.publish(facts, measures, provisional="count" in incomplete)


@artifact_task(version="1", exclude=["threads"])
def square(numbers: Shards, threads: int = 1) -> Shards:
    """The squares of one shard."""
    note(f"square {numbers.label}")
    rows = [{"value": value**2} for table in numbers.tables("numbers") for value in table["value"].to_pylist()]
    folder = workspace()
    folder.add_table("squares", "squares.parquet", NUMBERS.table(rows), NUMBERS)
    return folder.publish()


@artifact_task(version="1")
def add(squares: list[Shards]) -> Rows:
    """The sum of all squares, as a table of one row."""
    note("add")
    total = sum(value for shards in squares for value in shards.table("squares")["value"].to_pylist())
    return Rows(contract=NUMBERS.name, table=NUMBERS.table([{"value": total}]))


@flow(persist_result=False, result_serializer=ParquetSerializer())
def pipeline(upto: int = 6, shard_rows: int = 2, threads: int = 1) -> int:
    """Count, square each shard, add."""
    numbers = count(upto, shard_rows)
    squares = square.map(numbers.split("numbers"), threads=unmapped(threads)).result()
    return add(squares).table["value"][0].as_py()


ALL = ["count", "square numbers-00000", "square numbers-00001", "square numbers-00002", "add"]
ANSWER = sum(value**2 for value in range(6))


def run(**parameters: int) -> list[str]:
    """Run the pipeline and return the bodies that ran, sorted as in `ALL`."""
    ran.clear()
    assert pipeline(**parameters) == ANSWER
    return sorted(ran, key=ALL.index)


def only(folder: Path, pattern: str) -> Path:
    """The one file that fits a pattern."""
    (found,) = folder.glob(pattern)
    return found
