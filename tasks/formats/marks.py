"""An answer's control ids as one letter each, so that a rule about their order is a regular expression.

The strings of a shard are few and short whatever its answers say, and finding them is one look-up per id in a table: a
rule costs nothing per id. Which letters there are, and what they may look like, is a family's (thinking.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex

from schemas.ragged import Ids
from tasks.formats.format import Fault

TAIL = "_"  # stands for ordinary ids after the last control id

_KNOWN = 65_536  # distinct strings remembered
_SHOWN = 16  # markers spelt out in a detail


class Marks:
    """The letters of control ids."""

    def __init__(self, vocab_size: int, letters: Mapping[int, str]) -> None:
        self._table = np.zeros(vocab_size, dtype=np.uint8)
        for number, letter in letters.items():
            self._table[number] = ord(letter)

    def of(self, rows: Sequence[Ids]) -> list[str]:
        """The letters of every row's control ids, and `TAIL` if ordinary ids follow; ids out of range have none."""
        if not rows:
            return []
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        values = np.concatenate(rows).astype(np.int64, copy=False)
        codes = np.take(self._table, values, mode="clip")
        codes[(values < 0) | (values >= len(self._table))] = 0
        at = np.flatnonzero(codes)
        text = codes[at].tobytes().decode("ascii")
        ends = np.cumsum(lengths)
        cuts = np.searchsorted(at, ends)
        ordinary_last = (lengths > 0) & (codes[ends - 1] == 0) if len(codes) else np.zeros(len(rows), dtype=bool)
        strings, begin = [], 0
        for cut, tail in zip(cuts.tolist(), ordinary_last.tolist(), strict=True):
            strings.append(text[begin:cut] + TAIL if tail else text[begin:cut])
            begin = cut
        return strings

    def last(self, rows: Sequence[Ids], window: int = 64) -> list[str]:
        """The letter of every row's last control id, empty where a row has none."""
        found = [marks.rstrip(TAIL)[-1:] for marks in self.of([row[-window:] for row in rows])]
        far = [place for place, letter in enumerate(found) if not letter and len(rows[place]) > window]
        for place, marks in zip(far, self.of([rows[place] for place in far]), strict=True):
            found[place] = marks.rstrip(TAIL)[-1:]
        return found


class Rule(NamedTuple):
    """A fault, the pattern (or function) that finds it in a row's letters, and what to say about it."""

    reason: str
    pattern: str | Callable[[str], bool]
    why: str


class Rulebook:
    """Rules in order: the first that finds something names the fault."""

    def __init__(self, rules: Sequence[Rule], texts: Mapping[str, str]) -> None:
        self._rules = [
            (rule, regex.compile(rule.pattern).search if isinstance(rule.pattern, str) else rule.pattern)
            for rule in rules
        ]
        self._texts = texts
        self._known: dict[str, Fault | None] = {}

    def fault(self, marks: str) -> Fault | None:
        """What is wrong with a row's letters."""
        if marks not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[marks] = self._find(marks)
        return self._known[marks]

    def _find(self, marks: str) -> Fault | None:
        for rule, finds in self._rules:
            if finds(marks):
                return Fault(rule.reason, f"{rule.why}; its markers: {self._spell(marks)}")
        return None

    def _spell(self, marks: str) -> str:
        texts = [self._texts[letter] for letter in marks if letter in self._texts]
        if len(texts) > _SHOWN:
            texts[_SHOWN - 2 : -2] = [f"({len(texts) - _SHOWN} more)"]
        return " ".join(texts) or "none"
