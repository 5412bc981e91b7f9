"""Rows, artifacts and task bodies for the tests of single steps: good rows that a test spoils in one place."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import pyarrow as pa
from prefect import Task

from schemas.answers import ANSWERS, SEQUENCES
from schemas.contract import Contract
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace, working_in

VOCAB = 400
CONTEXT = 64
END, ALSO_END = 2, 3
TEMPLATE = "ab" * 32

TARGET = Shards(
    shards=(),
    facts={
        "vocab_size": VOCAB,
        "context": CONTEXT,
        "eos_ids": [END, ALSO_END],
        "special_ids": [0, 1, END, ALSO_END, 4],
        "template_sha256": TEMPLATE,
    },
)


def prompt_id(number: int) -> str:
    """A well-formed prompt id."""
    return f"{number:032x}"


def answer(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A good answer; the engine's counts follow the ids unless they are given."""
    row: dict[str, Any] = {
        "prompt_id": prompt_id(number),
        "dataset": "chat",
        "prompt_ids": [1, 50, 51],
        "output_ids": [60, 61, END],
        "text": "ab",
        "finish_reason": "stop",
        "engine": "transformers",
    }
    row |= changes
    row.setdefault("prompt_tokens", len(row["prompt_ids"]))
    row.setdefault("completion_tokens", len(row["output_ids"]))
    return row


def sequence(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A good sequence."""
    row: dict[str, Any] = {
        "prompt_id": prompt_id(number),
        "dataset": "chat",
        "prompt_ids": [1, 50, 51],
        "completion_ids": [60, 61, END],
        "provenance": "returned",
        "finish_reason": "stop",
        "billed_delta": 0,
        "template_sha256": TEMPLATE,
    }
    return row | changes


def answers(*rows: dict[str, Any]) -> pa.Table:
    """A table of answers."""
    return ANSWERS.table(rows)


def sequences(*rows: dict[str, Any]) -> pa.Table:
    """A table of sequences."""
    return SEQUENCES.table(rows)


def stored(name: str, part: str, contract: Contract, tables: Iterable[pa.Table], **facts: Any) -> Shards:
    """An artifact of these tables, in the store."""
    out = Workspace(f"{name}/given.parquet")
    for number, table in enumerate(tables):
        out.add_table(part, f"{part}-{number:05d}.parquet", table, contract)
    return out.publish(facts=facts)


def run_body(task: Task[..., Any], *args: Any, name: str = "one", **kwargs: Any) -> Shards:
    """What the body of an artifact task returns, run in the store without Prefect."""
    body = cast(Callable[..., Shards], cast(Any, task.fn).__wrapped__)
    with working_in(Workspace(f"{task.name}/{name}.parquet")):
        return body(*args, **kwargs)
