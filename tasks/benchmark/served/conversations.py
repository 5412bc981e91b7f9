"""Benchmark conversations, turn by turn: a later turn is asked with the engine's own answer to the turn before it.

Unlike answers that are trained on, one that was cut at the limit still is a history: every prompt is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.formats.format import Fault, TokenFormat
from tasks.target.rendering import RenderedPrompt, Renderer, quarantined

STEP = "benchmark"


@dataclass(frozen=True)
class Asked:
    """A turn as it is sent."""

    prompt: RenderedPrompt
    turn: int


class Conversations:
    """All turns of whole conversations.

    Args:
        table: contract PROMPTS; a turn's parent is in it too.
        renderer: of the target.
        token_format: of the target.
        room: tokens that must fit after every prompt.
    """

    def __init__(self, table: pa.Table, renderer: Renderer, token_format: TokenFormat, room: int) -> None:
        self.rows: list[dict[str, Any]] = table.to_pylist()
        self._renderer, self._format, self._room = renderer, token_format, room
        self._requests: dict[str, dict[str, Any]] = {}
        self._ids: dict[str, tuple[int, ...]] = {}

    @property
    def levels(self) -> int:
        """How many turns the longest conversation has."""
        return 1 + max((row["turn"] for row in self.rows), default=-1)

    def ready(self, level: int, said: Mapping[str, Iterable[int]]) -> tuple[list[Asked], list[dict[str, Any]]]:
        """The turns of a level that can be asked, and rows of QUARANTINE for the others.

        Args:
            level: 0 for first turns.
            said: the answers to the level before, by prompt id.
        """
        asked: list[Asked] = []
        lost: list[dict[str, Any]] = []
        for row in self.rows:
            if row["turn"] != level:
                continue
            ids = self._render(row, said)
            if isinstance(ids, Fault):
                lost.append(quarantined(row, STEP, ids))
                continue
            self._ids[row["prompt_id"]] = ids
            asked.append(Asked(RenderedPrompt(row["prompt_id"], row["dataset"], ids), level))
        return asked, lost

    def _render(self, row: Mapping[str, Any], said: Mapping[str, Iterable[int]]) -> tuple[int, ...] | Fault:
        messages = json.loads(row["messages"])
        parent = row["parent_id"]
        if parent is not None:
            if parent not in said:
                return Fault("parent_unusable", f"the turn before, {parent}, has no answer")
            before = self._requests[parent]["messages"]
            messages = [*before, self._message(parent, said[parent]), *messages]
        if any(message["role"] == "tool" for message in messages):
            return Fault("tool_result", "recorded tool results belong to recorded calls, which are not what was said")
        request = {"messages": messages} | ({"tools": json.loads(row["tools"])} if row["tools"] else {})
        self._requests[row["prompt_id"]] = request
        return self._renderer.ids(request, self._room)

    def _message(self, prompt_id: str, output: Iterable[int]) -> dict[str, Any]:
        prompt = np.asarray(self._ids[prompt_id], dtype=np.int32)
        reply = self._format.reply(np.asarray(list(output), dtype=np.int32), self._format.opening(prompt))
        reasoning = {"reasoning_content": reply.reasoning} if reply.reasoning else {}
        return {"role": "assistant", "content": reply.content} | reasoning
