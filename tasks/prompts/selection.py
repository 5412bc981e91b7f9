"""The prompts of one split, kept on disk and given out in the order in which they are sharded.

The order is that of the first turn's id, a hash, so that all shards have the same mix of datasets; the turns of one
conversation, and conversations with the same beginning, stand together. Turns that two conversations share are there
once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from tasks.prompts.conversation import Conversation, Turn
from tasks.prompts.spool import Spool

_INDEX = np.dtype(
    [("root_high", ">u8"), ("root_low", ">u8"), ("turn", ">u4"), ("high", ">u8"), ("low", ">u8"), ("place", ">u8")]
)
_ENTRY = struct.Struct(">16sI16sQ")
_NAMED = 3  # fields before the turns: dataset, key, tools


@dataclass(frozen=True, slots=True)
class Prompt:
    """One assistant turn to regenerate, as in the PROMPTS table."""

    prompt_id: str
    root_id: str
    parent_id: str | None
    turn: int
    dataset: str
    source_key: str
    messages: str
    tools: str | None


class Selection:
    """Conversations set aside, and those of them that were taken."""

    def __init__(self, folder: Path | None = None) -> None:
        self._spool = Spool(folder)
        self._index = bytearray()
        self._order: np.ndarray | None = None
        self.conversations = 0
        self.turns = 0  # of the conversations taken; a turn that several share counts for each

    def set_aside(self, conversation: Conversation) -> int:
        """Store a conversation; returns its place."""
        texts = [conversation.dataset, conversation.source_key, conversation.tools or ""]
        for turn in conversation.turns:
            texts += [turn.prompt_id, turn.messages]
        return self._spool.append([text.encode() for text in texts])

    @property
    def aside(self) -> int:
        """How many conversations are stored."""
        return len(self._spool)

    def at(self, place: int) -> Conversation:
        """The conversation at a place, without what its user says."""
        dataset, key, tools, *turns = (field.decode() for field in self._spool[place])
        pairs = zip(turns[::2], turns[1::2], strict=True)
        return Conversation(dataset, key, tools or None, tuple(Turn(*pair) for pair in pairs))

    def take(self, place: int) -> None:
        """Let a conversation be among the prompts."""
        ids = [bytes.fromhex(field.decode()) for field in self._spool[place][_NAMED::2]]
        for turn, prompt_id in enumerate(ids):
            self._index += _ENTRY.pack(ids[0], turn, prompt_id, place)
        self.conversations += 1
        self.turns += len(ids)
        self._order = None

    def __len__(self) -> int:
        return len(self._ordered())

    def __iter__(self) -> Iterator[Prompt]:
        for _, turn, place in self._entries():
            yield self._prompt(turn, place)

    def shards(self, size: int) -> Iterator[list[Prompt]]:
        """All prompts in lists of at most `size`; longer only where one first turn leads to more than that."""
        shard: list[Prompt] = []
        for _, tree in groupby(self._entries(), key=lambda entry: entry[0]):
            prompts = [self._prompt(turn, place) for _, turn, place in tree]
            if shard and len(shard) + len(prompts) > size:
                yield shard
                shard = []
            shard += prompts
        if shard:
            yield shard

    def _entries(self) -> Iterator[tuple[tuple[int, int], int, int]]:
        for entry in self._ordered():
            yield (int(entry["root_high"]), int(entry["root_low"])), int(entry["turn"]), int(entry["place"])

    def _prompt(self, number: int, place: int) -> Prompt:
        found = self.at(place)
        turn = found.turns[number]
        parent = found.turns[number - 1].prompt_id if number else None
        return Prompt(
            turn.prompt_id,
            found.root_id,
            parent,
            number,
            found.dataset,
            found.source_key,
            turn.messages,
            found.tools,
        )

    def _ordered(self) -> np.ndarray:
        if self._order is None:
            index = np.frombuffer(bytes(self._index), _INDEX)
            ordered = index[np.lexsort([index[name] for name in reversed(_INDEX.names or ())])]
            new = np.ones(len(ordered), bool)
            new[1:] = (ordered["high"][1:] != ordered["high"][:-1]) | (ordered["low"][1:] != ordered["low"][:-1])
            self._order = ordered[new]
        return self._order
