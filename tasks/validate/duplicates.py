"""Finds conversations that ask nearly what an earlier one asks, by MinHash over runs of five of the user's words.

Signs of mathematics and code count as words, since "x + 1" and "x - 1" are two questions, and so do the characters of
scripts without spaces. Only conversations under the same system text and tools can be alike.

Hashes have a fixed seed and the first conversation in order stays, so the same rows give the same result in every run
and process. Turns of one conversation share their beginning by nature and are never held against each other.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import regex
from rensa import RMinHash, RMinHashLSH  # pyright: ignore[reportAttributeAccessIssue] (compiled, without stubs)

from schemas.ragged import Mask

Sketch = npt.NDArray[np.uint32]  # (SLOTS,)

RUN = 5  # words
SLOTS = 64
_SEED = 1
_FIND = 0.95  # share of pairs at exactly the threshold that the bands must bring together
_FIRST_ROOM = 1024
_ID = np.dtype("V16")

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_PROSE = r".,;:!?\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026\u3001\u3002"
_ASCII_WORD = re.compile(r"\w+|[^\w\s.,;:!?\"'`]")
_WORD = regex.compile(rf"(?V1)[{_UNSPACED}]|[\w--[{_UNSPACED}]]+|[^\w\s\x1c-\x1f{_PROSE}]")


class Conversation(NamedTuple):
    """A row as it is compared: what the user said up to here, and which conversation it is a turn of.

    `frame` is the system text and the tools, character by character: one word more in them, and nothing is alike.
    """

    prompt_id: str
    root_id: str
    said: str
    frame: str = ""


class NearDuplicates:
    """The conversations so far; grows by about 1.7 KB for each.

    A set in which most prompts are a long common text with a few words changed makes it slow, since then every prompt
    is held against nearly every other.
    """

    def __init__(self, similarity: float) -> None:
        self._least = similarity
        self._index = RMinHashLSH(similarity, SLOTS, bands_for(similarity))
        self._sketches = np.empty((_FIRST_ROOM, SLOTS), dtype=np.uint32)  # (room, SLOTS)
        self._ids = np.empty((_FIRST_ROOM, 2), dtype=_ID)  # (room, prompt and root)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def first_alike(self, conversations: Sequence[Conversation]) -> list[str | None]:
        """For each conversation the prompt id of the first one that it nearly repeats; the others are remembered."""
        sketches = RMinHash.from_token_sets([_runs(one) for one in conversations], SLOTS, _SEED)
        found: list[str | None] = []
        same: dict[tuple[str, bytes], str | None] = {}  # later turns of an agent say nothing new
        for one, sketch in zip(conversations, sketches, strict=True):
            if not one.said.strip():
                found.append(None)
                continue
            digest = np.asarray(sketch.digest(), dtype=np.uint32)
            turn = (one.root_id, digest.tobytes())
            if turn not in same:
                same[turn] = self._alike(sketch, digest, one)
                if same[turn] is None:
                    self._remember(sketch, digest, one)
            found.append(same[turn])
        return found

    def _alike(self, sketch: RMinHash, digest: Sketch, one: Conversation) -> str | None:
        candidates = sorted(self._index.query(sketch))
        if not candidates:
            return None
        alike: Mask = (self._sketches[candidates] == digest).mean(axis=1) >= self._least
        others: Mask = self._ids[candidates, 1] != _id(one.root_id)
        found = np.flatnonzero(alike & others)
        return self._ids[candidates[found[0]], 0].tobytes().hex() if len(found) else None

    def _remember(self, sketch: RMinHash, digest: Sketch, one: Conversation) -> None:
        if self._count == len(self._sketches):
            self._sketches = np.concatenate([self._sketches, np.empty_like(self._sketches)])
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
        self._sketches[self._count] = digest
        self._ids[self._count] = _id(one.prompt_id), _id(one.root_id)
        self._index.insert(self._count, sketch)
        self._count += 1


def bands_for(similarity: float) -> int:
    """The fewest bands of the sketch that bring nearly all pairs of this similarity together."""
    for bands in (2, 4, 8, 16, 32):
        if 1 - (1 - similarity ** (SLOTS // bands)) ** bands >= _FIND:
            return bands
    return SLOTS


def words_of(text: str) -> list[str]:
    """The words of a text as near-duplicates count them, without case and the punctuation of prose."""
    if text.isascii():  # most texts, and these are found four times as fast
        return _ASCII_WORD.findall(text.lower())
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _id(text: str) -> np.void:
    return np.void(bytes.fromhex(text))  # unlike bytes with a length, it keeps zeros at its end


def _runs(one: Conversation) -> list[str]:
    found = words_of(one.said)
    if len(found) < RUN:  # too few to be nearly alike: then the texts are equal or not
        return [f"{' '.join(one.said.casefold().split())}\0{one.frame}"]
    runs = [" ".join(found[start : start + RUN]) for start in range(len(found) - RUN + 1)]
    if not one.frame:
        return runs
    frame = hashlib.blake2b(one.frame.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return [f"{run}\0{frame}" for run in runs]  # none is shared with another frame's
