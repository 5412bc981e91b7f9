"""Sources for the tests of prompts: rows as a file, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas.sections import DatasetSpec
from tasks.prompts.adapters import adapter_of
from tasks.prompts.conversation import Conversation, Rejected
from tasks.prompts.locate import locate_sources
from tasks.prompts.parse import parse_record, read_conversations
from tasks.prompts.records import Record


def dataset(source: object = "chat.jsonl", adapter: str = "jsonl", **more: Any) -> DatasetSpec:
    """A recipe's dataset."""
    return DatasetSpec.model_validate({"name": "chat", "source": str(source), "adapter": adapter, **more})


def outcome(
    row: dict[str, Any], adapter: str = "jsonl", columnar: bool = False, **more: Any
) -> Conversation | Rejected:
    """What becomes of one row."""
    spec = dataset(adapter=adapter, **more)
    return parse_record(Record("line 1", json.dumps(row).encode(), row, columnar), spec, adapter_of(spec))


def kept(row: dict[str, Any], adapter: str = "jsonl", **more: Any) -> Conversation:
    """The conversation of a good row."""
    found = outcome(row, adapter, **more)
    assert isinstance(found, Conversation), found
    return found


def turns(row: dict[str, Any], adapter: str = "jsonl", **more: Any) -> list[list[dict[str, str]]]:
    """What is new in each turn of a good row."""
    return [json.loads(turn.messages) for turn in kept(row, adapter, **more).turns]


def reason(row: dict[str, Any], adapter: str = "jsonl", **more: Any) -> str:
    """Why a bad row is rejected."""
    found = outcome(row, adapter, **more)
    assert isinstance(found, Rejected), found
    return found.reason


def rows_of(path: Path, content: bytes, adapter: str = "jsonl", **more: Any) -> list[Conversation | Rejected]:
    """What becomes of all rows of a file with this content."""
    path.write_bytes(content)
    spec = dataset(path, adapter, **more)
    return list(read_conversations(spec, locate_sources([spec])[0]))


def system(text: Any) -> dict[str, Any]:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: Any = "An answer that nobody keeps.", *calls: str) -> dict[str, Any]:
    """A recorded answer, with calls of these functions."""
    made = [{"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}


def tool(name: str, text: str) -> dict[str, Any]:
    """A tool's result, as it stands in a prompt."""
    return {"role": "tool", "name": name, "content": text}
