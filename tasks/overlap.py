"""Tells whether a prompt asks what a benchmark asks, by its words alone.

Two prompts are alike when their words are equal, or when they share a run of 13 words (the rule of the GPT-3 paper,
appendix C). Scripts without spaces between words are compared whole only. Where texts come from is left to others.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RUN_WORDS = 13

_APOSTROPHES = "'\u2019\u02bc"


class _Fold(dict[int, str]):
    """What each character becomes: punctuation and symbols a space, apostrophes and invisible marks nothing."""

    def __missing__(self, point: int) -> str:
        character = chr(point)
        category = unicodedata.category(character)
        dropped = category == "Cf" or character in _APOSTROPHES
        self[point] = "" if dropped else " " if category[0] in "PSZC" else character
        return self[point]


_FOLD = _Fold()


def words(text: str) -> tuple[str, ...]:
    """The words of a text, without case, punctuation, width variants or the kind of white space."""
    if text.isascii():  # most texts, and these have nothing to normalise
        folded = text.lower()
    else:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return tuple(folded.translate(_FOLD).split())


class Asked(NamedTuple):
    """A conversation as the index sees it: what to call it, its prompt id, and what the user says in each turn."""

    name: str
    prompt_id: str
    user_turns: Sequence[str]


@dataclass(frozen=True)
class Overlap:
    """Which benchmark prompt a prompt is like, and in what way."""

    benchmark: str
    how: str


class BenchmarkIndex:
    """The benchmark prompts, ready to be compared with."""

    def __init__(self, prompts: Iterable[Asked]) -> None:
        self._ids: dict[str, str] = {}
        self._texts: dict[tuple[str, ...], str] = {}
        self._runs: dict[tuple[str, ...], str] = {}
        for prompt in prompts:
            turns = [words(turn) for turn in prompt.user_turns]
            self._ids.setdefault(prompt.prompt_id, prompt.name)
            for text in (_joined(turns), *turns[:1]):
                if text:
                    self._texts.setdefault(text, prompt.name)
            for turn in turns:
                for run in _runs(turn):
                    self._runs.setdefault(run, prompt.name)

    def __len__(self) -> int:
        return len(self._ids)

    def overlap(self, prompt: Asked) -> Overlap | None:
        """The benchmark prompt that this prompt repeats, if there is one."""
        if name := self._ids.get(prompt.prompt_id):
            return Overlap(name, "the same prompt")
        turns = [words(turn) for turn in prompt.user_turns]
        for text in (_joined(turns), *turns):
            if name := self._texts.get(text):
                return Overlap(name, "the same words")
        for turn in turns:
            for run in _runs(turn):
                if name := self._runs.get(run):
                    return Overlap(name, f"the words {' '.join(run)!r}")
        return None


def _joined(turns: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(word for turn in turns for word in turn)


def _runs(turn: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (turn[start : start + RUN_WORDS] for start in range(len(turn) - RUN_WORDS + 1))
