"""The prompts of a shard as the ids that the target reads, and the rows for which there are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from schemas.errors import TemplateRefused
from schemas.prompts import quarantine_row
from tasks.target.text import render_prompt


@dataclass(frozen=True)
class RenderedPrompt:
    """One prompt up to where the answer begins."""

    prompt_id: str
    dataset: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class RenderedShard:
    """The prompts of a shard in the table's order, and rows of QUARANTINE for those that cannot be answered."""

    prompts: list[RenderedPrompt]
    quarantine: list[dict[str, Any]]


def render_shard(table: pa.Table, tokenizer: Any, facts: dict[str, Any], room: int, step: str) -> RenderedShard:
    """Render every prompt; one that leaves no room for the answer in the context is quarantined.

    Args:
        table: contract PROMPTS.
        tokenizer: the target's.
        facts: the target's; its context and template switches are read.
        room: tokens that must fit after the prompt.
        step: who asks, for the quarantine.
    """
    shard = RenderedShard([], [])
    for row in table.to_pylist():
        try:
            ids = render_prompt(tokenizer, json.loads(row["messages"]), facts["template_switches"])
        except TemplateRefused as exc:
            shard.quarantine.append(_quarantined(row, step, "template_refused", str(exc)))
            continue
        if len(ids) + room > facts["context"]:
            detail = f"{len(ids)} ids and {room} for the answer do not fit in a context of {facts['context']}"
            shard.quarantine.append(_quarantined(row, step, "prompt_too_long", detail))
            continue
        shard.prompts.append(RenderedPrompt(row["prompt_id"], row["dataset"], tuple(ids)))
    return shard


def cut_batches(prompts: Sequence[RenderedPrompt], size: int) -> list[list[RenderedPrompt]]:
    """Batches of similar prompt length, the same for the same prompts in any order."""
    ordered = sorted(prompts, key=lambda prompt: (len(prompt.ids), prompt.prompt_id))
    return [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]


def _quarantined(row: dict[str, Any], step: str, reason: str, detail: str) -> dict[str, Any]:
    return quarantine_row(step, row["dataset"], row["prompt_id"], reason, detail, row["messages"].encode())
