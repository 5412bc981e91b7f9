"""From an answer's text to its ids' order: every way in which reasoning and content can have been sampled.

Text is cut at markers, and nowhere is a character added or dropped. Where the text alone does not say whether a marker
was sampled, there is a reading for either, and the billed count decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.formats.format import Fault, Opening, Part, Reading, Said
from tasks.formats.marker_text import any_of
from tasks.formats.sections import Grammar, Span, Tools

_MARKER_TEXT = "marker_text_in_answer"
_NO_CLOSE = "missing_close_before_tools"
_HIDDEN = "reasoning_not_returned"
_EITHER = "unexplained"
_TRIMMED = "trimmed_whitespace"


@dataclass(frozen=True)
class _Text:
    """A text with the markers that are written in it; those of tool sections were sampled as ids."""

    text: str
    marks: tuple[tuple[int, int, int], ...] = ()  # begin, end, id
    structural: frozenset[int] = frozenset()  # which of the marks belong to a tool section
    begins_with_section: bool = False
    ends_with_section: bool = False

    def parts(self, all_ids: bool) -> Iterator[Part]:
        begin = 0
        for place, (start, end, number) in enumerate(self.marks):
            if all_ids or place in self.structural:
                if start > begin:
                    yield self.text[begin:start]
                yield number
                begin = end
        if begin < len(self.text):
            yield self.text[begin:]


_Items = tuple[int | _Text, ...]
_Variant = tuple[_Items, str]  # what was sampled, and the doubt


class Reader:
    """Reads the answers of one family with one tokenizer.

    Args:
        markers: every added token but the ends of a turn, by text.
        think: open and close marker.
        lead: text that is sampled before the open marker, and that servers drop.
        end: the id that ends a turn.
        end_after_tools: the id that ends a turn whose last thing is a tool section.
        tools: how the family calls tools.
    """

    def __init__(
        self,
        markers: Mapping[str, int],
        think: tuple[str, str] | None,
        lead: str,
        end: int,
        end_after_tools: int,
        tools: Tools | None,
    ) -> None:
        self._markers = markers
        self._pattern = any_of(markers)
        self._think, self._lead = think, lead
        self._end, self._end_after_tools = end, end_after_tools
        self._letters: Mapping[str, str] = tools.letters if tools else {}
        self._grammar = Grammar(tools) if tools else None

    def readings(self, said: Said, opening: Opening) -> list[Reading] | Fault:
        """Every way in which the text can have been sampled; see `TokenFormat`."""
        if not (said.reasoning or said.content or said.ended):
            return Fault("empty_completion", "the answer has no text and did not end by itself")
        if self._think is None or opening == "closed":
            variants = self._without_reasoning(said)
        elif opening == "open":
            variants = self._opened(said, self._think)
        else:
            variants = self._unsaid(said, self._think)
        if isinstance(variants, Fault):
            return variants
        found: dict[tuple[Part, ...], Reading] = {}
        for all_ids in (False, True):
            for items, doubt in variants:
                parts = self._parts(items, said.ended, all_ids)
                found.setdefault(parts, Reading(parts, _MARKER_TEXT if all_ids else doubt))
        return list(found.values())

    def _without_reasoning(self, said: Said) -> list[_Variant] | Fault:
        if said.reasoning and said.content:
            return Fault(
                "close_marker_unasked",
                "the answer has reasoning and content, though its prompt closed the reasoning or its format knows none",
            )
        # some servers file all text under reasoning until they see a close marker, which never comes
        return [((self._scan(said.reasoning or said.content or "", tools=True, cut=not said.ended),), "")]

    def _opened(self, said: Said, think: tuple[str, str]) -> list[_Variant] | Fault:
        opens, closes = think
        for name, text in (("reasoning", said.reasoning), ("content", said.content)):
            if text and opens in text:
                return Fault(
                    "open_marker_in_answer",
                    f"the {name} has {opens} at character {text.index(opens)}, which is in the prompt already",
                )
        if said.reasoning:
            return self._both(said)
        content = said.content or ""
        reasoning, found, rest = content.partition(closes)
        if found:  # a server without a parser: the text is as it was sampled
            return [self._whole(reasoning, rest, said.ended)]
        text = self._scan(content, tools=True, cut=not said.ended)
        close = self._markers[closes]
        doubt = _NO_CLOSE if text.structural else _HIDDEN
        variants: list[_Variant] = [((close, text), ""), ((text,), doubt)]
        if not said.ended and not text.structural:
            return [((text,), ""), ((close, text), _HIDDEN)]
        return variants

    def _unsaid(self, said: Said, think: tuple[str, str]) -> list[_Variant] | Fault:
        opens, closes = think
        head: _Items = (self._markers[opens],)
        lead = (_Text(self._lead),) if self._lead else ()
        if said.reasoning:
            variants = self._both(Said(said.reasoning.removeprefix(opens), said.content, said.ended), head)
            return variants + [((*lead, *items), doubt or _TRIMMED) for items, doubt in variants if lead]
        content = said.content or ""
        if lead and content.startswith(self._lead + opens):
            content, head = content.removeprefix(self._lead), (*lead, *head)
        if content.startswith(opens):
            reasoning, found, rest = content.removeprefix(opens).partition(closes)
            if found:
                return [self._whole(reasoning, rest, said.ended, head)]
            return [((*head, self._scan(reasoning, tools=True, cut=not said.ended)), "")]
        text = self._scan(content, tools=True, cut=not said.ended)
        variants: list[_Variant] = [((text,), ""), ((*head, self._markers[closes], text), _HIDDEN)]
        reasoning, found, rest = content.partition(closes)
        if found:  # a server that leaves out the open marker alone: as many ids, perhaps, as the close marker as text
            for before, thought in ((), reasoning), (lead, reasoning), (lead, reasoning.removeprefix(self._lead)):
                items, _ = self._whole(thought, rest, said.ended, head)
                variants.append(((*before, *items), _MARKER_TEXT))
        return variants

    def _whole(self, reasoning: str, content: str, ended: bool, head: _Items = ()) -> _Variant:
        """Reasoning, close marker and content."""
        assert self._think is not None
        thought = self._scan(reasoning, tools=False, cut=not ended)
        text = self._scan(content, tools=True, cut=not ended)
        return (*head, thought, self._markers[self._think[1]], text), ""

    def _both(self, said: Said, head: _Items = ()) -> list[_Variant]:
        """A reasoning field and content; also without the close marker where it may not have been sampled."""
        whole = self._whole(said.reasoning or "", said.content or "", said.ended, head)
        *before, _, text = whole[0]
        without = (*before, text)
        if isinstance(text, _Text) and text.begins_with_section:
            return [whole, (without, _NO_CLOSE)]
        if said.content:
            return [whole]
        return [whole, (without, _EITHER)] if said.ended else [(without, ""), (whole[0], _EITHER)]

    def _parts(self, items: _Items, ended: bool, all_ids: bool) -> tuple[Part, ...]:
        parts: list[Part] = []
        after_tools = False
        for item in items:
            if isinstance(item, int):
                parts.append(item)
            else:
                parts += item.parts(all_ids)
                after_tools = item.ends_with_section
        if ended:
            parts.append(self._end_after_tools if after_tools else self._end)
        return tuple(parts)

    def _scan(self, text: str, tools: bool, cut: bool) -> _Text:
        matches = list(self._pattern.finditer(text))
        if not matches:
            return _Text(text)
        marks = tuple((*match.span(), self._markers[match[0]]) for match in matches)
        places = [place for place, match in enumerate(matches) if match[0] in self._letters] if tools else []
        if not self._grammar or not places:
            return _Text(text, marks)
        spans = self._grammar.find("".join(self._letters[matches[place][0]] for place in places), cut)
        structural = frozenset(place for span in spans for place in places[span.begin : span.end])
        return _Text(
            text,
            marks,
            structural,
            begins_with_section=0 in structural and matches[0].start() == 0,
            ends_with_section=_ends(text, spans, places, matches),
        )


def _ends(text: str, spans: Sequence[Span], places: Sequence[int], matches: Sequence[re.Match[str]]) -> bool:
    last = places[spans[-1].end - 1] if spans and spans[-1].whole else None
    return last is not None and not text[matches[last].end() :].strip()
