"""Rows, artifacts and task bodies for the tests of single steps: good rows that a test spoils in one place."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from prefect import Task

from schemas.answers import ANSWERS, SEQUENCES
from schemas.contract import Contract
from schemas.prompts import PROMPTS
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
        "token_format": "plain",
        "reply_ids": [END, ALSO_END],
        "template_sha256": TEMPLATE,
        "template_switches": {},
    },
)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces, as prompts, requests and switches are stored."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def prompt_id(number: int) -> str:
    """A well-formed prompt id."""
    return f"{number:032x}"


def request(*messages: Mapping[str, Any] | str, tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The `request` cell of an answer; a string is what the user says."""
    sent = [{"role": "user", "content": m} if isinstance(m, str) else dict(m) for m in messages]
    return canonical_json({"messages": sent} | ({"tools": list(tools)} if tools else {}))


def prompt(
    *messages: Mapping[str, Any] | str,
    parent: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    **changes: Any,
) -> dict[str, Any]:
    """A row of PROMPTS: what is new since `parent`, which is another such row; a string is what the user says."""
    new = [{"role": "user", "content": m} if isinstance(m, str) else dict(m) for m in messages]
    declared = list(tools) or None
    identity = canonical_json([parent["prompt_id"] if parent else None, new, declared])
    own_id = hashlib.sha256(identity.encode()).hexdigest()[:32]
    row: dict[str, Any] = {
        "prompt_id": own_id,
        "root_id": parent["root_id"] if parent else own_id,
        "parent_id": parent["prompt_id"] if parent else None,
        "turn": parent["turn"] + 1 if parent else 0,
        "dataset": "chat",
        "source_key": parent["source_key"] if parent else own_id[:8],
        "split": "train",
        "messages": canonical_json(new),
        "tools": canonical_json(declared) if declared else None,
    }
    return row | changes


def answer(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A good answer of the embedded engine; its counts follow the ids unless they are given."""
    row: dict[str, Any] = {
        "prompt_id": prompt_id(number),
        "root_id": prompt_id(number),
        "dataset": "chat",
        "request": request("Hi"),
        "prompt_ids": [1, 50, 51],
        "output_ids": [60, 61, END],
        "reasoning": None,
        "content": None,
        "tool_calls": None,
        "finish_reason": "stop",
        "max_tokens": 16,
        "reasoning_tokens": None,
        "engine": "transformers",
        "provider": None,
        "model": None,
        "quantization": None,
        "response_id": None,
    }
    row |= changes
    row.setdefault("prompt_tokens", None if row["prompt_ids"] is None else len(row["prompt_ids"]))
    row.setdefault("completion_tokens", None if row["output_ids"] is None else len(row["output_ids"]))
    return row


def sequence(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A good sequence; its loss mask, billed count and conversation follow the rest unless they are given."""
    row: dict[str, Any] = {
        "prompt_id": prompt_id(number),
        "dataset": "chat",
        "request": request("Hi"),
        "prompt_ids": [1, 50, 51],
        "completion_ids": [60, 61, END],
        "answer_text": None,
        "provenance": "returned",
        "finish_reason": "stop",
        "max_tokens": 16,
        "billed_delta": 0,
        "delta_class": "exact",
        "token_format": "plain",
        "template_sha256": TEMPLATE,
        "template_switches": "{}",
        "engine": "transformers",
        "provider": None,
        "model": None,
        "quantization": None,
    }
    row |= changes
    row.setdefault("root_id", row["prompt_id"])
    row.setdefault("loss_mask", [0] * len(row["prompt_ids"]) + [1] * len(row["completion_ids"]))
    row.setdefault("billed", len(row["completion_ids"]))
    return row


def prompts(*rows: dict[str, Any]) -> pa.Table:
    """A table of prompts."""
    return PROMPTS.table(rows)


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
