"""Rows of what was measured, for the tests of figures and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from schemas.served import SERVED, SERVED_PASS


def served_row(prompt_id: str = "a", steps: Sequence[int] = (), **changes: Any) -> dict[str, Any]:
    """A row of SERVED; `steps` are the drafts that each verify step of a chain of 3 accepted."""
    drafts = bool(steps)
    row = {
        "prompt_id": prompt_id,
        "turn": 0,
        "dataset": "chat",
        "engine": "vllm",
        "drafter": "draft" if drafts else "none",
        "steps": 3 if drafts else 0,
        "top_k": 1 if drafts else 0,
        "draft_tokens": 4 if drafts else 0,
        "temperature": 0.0,
        "concurrency": 1,
        "prompt_ids": [1, 2, 3],
        "output_ids": list(range(100, 101 + sum(steps) + len(steps))) if drafts else list(range(100, 111)),
        "finish_reason": "length",
        "verify_steps": len(steps) if drafts else None,
        "drafted": 3 * len(steps) if drafts else None,
        "accepted": sum(steps) if drafts else None,
        "accepted_by_position": [sum(step > place for step in steps) for place in range(3)] if drafts else None,
        "first_seconds": 0.1,
        "seconds": 1.1,
    }
    return row | changes


def served(*rows: dict[str, Any]) -> pa.Table:
    """A table of answers."""
    return SERVED.table(rows)


def passes_of(rows: Sequence[dict[str, Any]], seconds: float, **changes: Any) -> pa.Table:
    """The pass that gave these rows."""
    first = rows[0]
    names = ("engine", "drafter", "steps", "top_k", "draft_tokens", "temperature", "concurrency")
    counts: dict[str, Any] = dict.fromkeys(("verify_steps", "drafted", "accepted", "accepted_by_position"))
    if first["verify_steps"] is not None:
        counts = {name: sum(row[name] for row in rows) for name in ("verify_steps", "drafted", "accepted")}
        lists = [row["accepted_by_position"] for row in rows]
        counts["accepted_by_position"] = [sum(column) for column in zip(*lists, strict=True)]
    row = {name: first[name] for name in names} | {
        "answers": len(rows),
        "tokens": sum(len(row["output_ids"]) for row in rows),
        "seconds": seconds,
        "counted_by": "response" if first["steps"] else "none",
        **counts,
    }
    return SERVED_PASS.table([row | changes])
