"""Requests as the ids that the target reads, or why there are none: the template refuses, a marker, no room."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from schemas.errors import TemplateRefused
from schemas.prompts import quarantine_row
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.formats.codec import Codec
from tasks.formats.format import Fault
from tasks.target.text import Template, load_codec_of, load_template_of, render_text


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


@dataclass(frozen=True)
class Renderer:
    """Turns requests into ids for one target, the way that its server does.

    `chat` says that a chat server is sent the messages, and does the rendering itself; see `render_text`.
    """

    template: Template
    switches: Mapping[str, bool | str]
    codec: Codec
    context: int
    chat: bool = False

    @classmethod
    def of(cls, target: Shards, target_spec: TargetSpec) -> Renderer:
        """For a prepared target.

        Raises:
            TargetError: the target's files are missing or were changed.
        """
        template, codec = load_template_of(target, target_spec), load_codec_of(target, target_spec)
        return cls(template, target.facts["template_switches"], codec, target.facts["context"])

    def ids(self, request: Mapping[str, Any], room: int) -> tuple[int, ...] | Fault:
        """The ids of a request, if `room` more fit after them in the target's context."""
        try:
            template, tools = self.template, request.get("tools")
            text = render_text(template.text, request["messages"], tools, self.switches, template.tokens, self.chat)
            ids = self.codec.encode_prompt([text])[0]
        except TemplateRefused as exc:
            return Fault("template_refused", str(exc))
        except UnicodeEncodeError as exc:
            return Fault("no_utf8", f"the prompt has half of a surrogate pair: {exc}")
        if len(ids) + room > self.context:
            return Fault(
                "prompt_too_long", f"{len(ids)} ids and {room} for the answer do not fit in a context of {self.context}"
            )
        return tuple(ids)


class MarkerFinder:
    """Finds text that a server would read as a control token; markers of white space alone are ordinary text."""

    def __init__(self, markers: Iterable[str]) -> None:
        longest_first = sorted((marker for marker in markers if marker.strip()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def find(self, texts: Iterable[str]) -> str:
        """The first marker in any of the texts, or nothing."""
        return next((found.group() for text in texts if (found := self._pattern.search(text))), "")


def render_shard(table: pa.Table, renderer: Renderer, room: int, step: str) -> RenderedShard:
    """Render every conversation's first turn; what cannot be answered is quarantined, and so is every later turn.

    Args:
        table: contract PROMPTS.
        renderer: of the target.
        room: tokens that must fit after the prompt.
        step: who asks, for the quarantine.
    """
    shard = RenderedShard([], [])
    for row in table.to_pylist():
        if row["turn"]:
            ids: tuple[int, ...] | Fault = Fault("later_turn", f"turn {row['turn']} needs an answer before it")
        else:
            ids = renderer.ids(row_request(row), room)
        if isinstance(ids, Fault):
            shard.quarantine.append(quarantined(row, step, ids))
        else:
            shard.prompts.append(RenderedPrompt(row["prompt_id"], row["dataset"], ids))
    return shard


def row_request(row: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a conversation's first turn, from its row of PROMPTS."""
    request = {"messages": json.loads(row["messages"])}
    return request | {"tools": json.loads(row["tools"])} if row["tools"] else request


def cut_batches(prompts: Sequence[RenderedPrompt], size: int) -> list[list[RenderedPrompt]]:
    """Batches of similar prompt length, the same for the same prompts in any order."""
    ordered = sorted(prompts, key=lambda prompt: (len(prompt.ids), prompt.prompt_id))
    return [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]


def quarantined(row: Mapping[str, Any], step: str, fault: Fault) -> dict[str, Any]:
    """A prompt's row of QUARANTINE."""
    return quarantine_row(
        step, row["dataset"], row["prompt_id"], fault.reason, fault.detail, row["messages"].encode("utf-8")
    )
