"""Tool sections: how a family writes calls, and where in a run of tool markers a section is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import regex

from tasks.formats.arguments import Schema, json_arguments
from tasks.formats.format import ToolCall


class Piece(NamedTuple):
    """A tool marker's letter, and the text between it and the next tool marker."""

    letter: str
    text: str


@dataclass(frozen=True)
class Tools:
    """How a family writes tool calls.

    Attributes:
        letters: the markers that are ids of their own, by text, with a letter each (none of `thinking.RESERVED`).
        grammar: one whole section, as a regular expression over these letters, e.g. `\\[(?:\\{:\\})+\\]`.
        read: the calls of one section, given its pieces in order.
        arguments: the JSON object of a call's arguments as it wrote them, given the schema of its parameters; raises
            UnreadableArguments.
        own_lines: calls begin on lines of their own, so that line ends before one, and white space alone after the
            last, are no content.
    """

    letters: Mapping[str, str]
    grammar: str
    read: Callable[[Sequence[Piece]], Sequence[ToolCall]]
    arguments: Callable[[str, Schema], str] = json_arguments
    own_lines: bool = False


class Span(NamedTuple):
    """A section's first letter and the one after its last; `whole` is False for one that the token limit cut."""

    begin: int
    end: int
    whole: bool


class Grammar:
    """A family's grammar of sections, ready to be used."""

    def __init__(self, tools: Tools) -> None:
        self._section = regex.compile(tools.grammar)
        self._letters = frozenset(tools.letters.values())

    def find(self, letters: str, cut: bool) -> list[Span]:
        """The sections in a run of tool letters.

        Args:
            letters: of the tool markers, in order.
            cut: the answer ended at a limit, so that its last section may be torn.
        """
        spans = [Span(*match.span(), whole=True) for match in self._section.finditer(letters)]
        rest = spans[-1].end if spans else 0
        if cut:
            torn = next((at for at in range(rest, len(letters)) if self._could_begin(letters[at:])), None)
            if torn is not None:
                spans.append(Span(torn, len(letters), whole=False))
        return spans

    def torn(self, letters: str, cut: bool) -> bool:
        """Whether there are tool letters outside of sections, or other letters inside of them."""
        spans = self.find(letters, cut)
        inside = sum(span.end - span.begin for span in spans)
        return inside != sum(letter in self._letters for letter in letters)

    def _could_begin(self, letters: str) -> bool:
        return self._section.fullmatch(letters, partial=True) is not None
