"""The turns of conversations, level by level: a turn is asked once the one before it is answered.

Every row is asked once or quarantined once, by what it says itself or because the turn before it cannot be its history.
A template may write a call otherwise than it was sampled (another order, other spaces); the turn is then asked with
what the template writes, which is what a server would read, and counted.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.ragged import Ids
from tasks.formats.format import Fault, Reply, TokenFormat
from tasks.generate.engine import Answer
from tasks.generate.history import first_request, next_request, readable, texts_of
from tasks.target.rendering import MarkerFinder, RenderedPrompt, Renderer, quarantined

STEP = "generate"

_log = logging.getLogger(f"eyas.{STEP}")

Request = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A turn as it is sent."""

    prompt: RenderedPrompt
    root_id: str
    request: Request


class Turns:
    """All turns of whole conversations; for each level from 0 on call `ready`, answer what it gives, call `settle`."""

    def __init__(
        self, table: pa.Table, renderer: Renderer, token_format: TokenFormat, room: int, markers: MarkerFinder | None
    ) -> None:
        """
        Args:
            table: contract PROMPTS; a turn's parent is in it too.
            renderer: of the target.
            token_format: of the target.
            room: tokens that must fit after every prompt.
            markers: finds the text for which a prompt is quarantined; None mirrors the server.
        """
        self.rows: list[dict[str, Any]] = table.to_pylist()
        self.quarantine: list[dict[str, Any]] = []
        self.asked: dict[str, Asked] = {}
        self.rewritten: list[str] = []  # prompt ids of turns that were asked with a call otherwise than it was sampled
        self.context = renderer.context
        self._renderer, self._format, self._room, self._markers = renderer, token_format, room, markers
        self._levels: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            self._levels[row["turn"]].append(row)
        self._parents = {row["parent_id"] for row in self.rows}
        self._replies: dict[str, Reply | Fault] = {}

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return max(self._levels, default=-1) + 1

    def ready(self, level: int) -> list[RenderedPrompt]:
        """The turns of a level that can be asked; the others are quarantined."""
        prompts = []
        for row in self._levels[level]:
            asked = self._ask(row)
            if isinstance(asked, Fault):
                self._replies[row["prompt_id"]] = asked
                self.quarantine.append(quarantined(row, STEP, asked))
            else:
                self.asked[row["prompt_id"]] = asked
                prompts.append(asked.prompt)
        return prompts

    def settle(self, answers: Sequence[Answer]) -> None:
        """Take the answers of a level as the history of the next."""
        wanted = [answer for answer in answers if answer.prompt_id in self._parents]
        prompts = [np.asarray(self.asked[answer.prompt_id].prompt.ids, dtype=np.int32) for answer in wanted]
        outputs = [np.asarray(answer.output_ids, dtype=np.int32) for answer in wanted]
        faults = self._format.faults(prompts, outputs, [answer.finish_reason for answer in wanted])
        for answer, prompt, output, fault in zip(wanted, prompts, outputs, faults, strict=True):
            cut = answer.finish_reason == "length"
            unusable = Fault("cut", f"its answer was cut at {answer.max_tokens} ids") if cut else fault
            self._replies[answer.prompt_id] = unusable or self._reply(answer.prompt_id, prompt, output)

    def take(self, prompt_id: str, reply: Reply | Fault) -> None:
        """Take an answer that has been taken apart and read already, or why there is none, as the history of the next
        level."""
        self._replies[prompt_id] = reply

    def has_followers(self, prompt_id: str) -> bool:
        """Whether a later turn waits for this one."""
        return prompt_id in self._parents

    def _ask(self, row: Mapping[str, Any]) -> Asked | Fault:
        request = self._request(row)
        if isinstance(request, Fault):
            return request
        if self._markers and (marker := self._markers.find(texts_of(request))):
            return Fault(
                "marker_in_prompt",
                f"the text has {marker!r}, which a server reads as a control token; "
                "reconstruction.markers_in_prompt: mirror would let it",
            )
        ids = self._renderer.ids(request, self._room)
        if isinstance(ids, Fault):
            return ids
        if self._is_rewritten(row["parent_id"], ids):
            self.rewritten.append(row["prompt_id"])
        return Asked(RenderedPrompt(row["prompt_id"], row["dataset"], ids), row["root_id"], request)

    def _reply(self, prompt_id: str, prompt: Ids, output: Ids) -> Reply | Fault:
        reply = self._format.reply(output, self._format.opening(prompt))
        return readable(reply, self._format, self.asked[prompt_id].request.get("tools"))

    def _is_rewritten(self, parent: str | None, ids: Sequence[int]) -> bool:
        """Whether the prompt lacks a call of the turn before as that one's answer wrote it."""
        reply = self._replies.get(parent) if parent else None
        if not isinstance(reply, Reply) or not reply.sections:
            return False
        text = self._renderer.codec.decode([list(ids)])[0]
        return any(section not in text for section in reply.sections)

    def _request(self, row: Mapping[str, Any]) -> Request | Fault:
        new = json.loads(row["messages"])
        tools = json.loads(row["tools"]) if row["tools"] else None
        parent = row["parent_id"]
        if parent is None:
            return first_request(new, tools)
        reply = self._replies.get(parent, Fault("not_here", "it is in no row of this shard"))
        if isinstance(reply, Fault):
            return Fault("parent_unusable", f"the turn before, {parent}: {reply.reason}: {reply.detail}")
        return next_request(self.asked[parent].request, reply, new, tools)


def told_rewritten(prompt_ids: Sequence[str]) -> dict[str, int]:
    """The fact about turns that were asked with a call otherwise than it was sampled, which is logged too."""
    if not prompt_ids:
        return {}
    _log.warning(
        "%d turns have a tool call in their history otherwise than the target wrote it, as its chat template writes "
        "calls anew; the first is %s",
        len(prompt_ids),
        prompt_ids[0],
    )
    return {"rewritten_calls": len(prompt_ids)}
