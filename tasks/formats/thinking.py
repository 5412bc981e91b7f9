"""Families of models whose answers are reasoning, a close marker, content and tool sections: a table each.

`Family` is the table, `Family.bind` makes a `TokenFormat` of it and one tokenizer. Ids are looked up by name in the
tokenizer and held against the table; nothing here reads a template (the openings are the table's word, the prompt's
last ids the proof).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schemas.answers import NATURAL_STOPS
from schemas.errors import TokenFormatError
from schemas.ragged import Ids
from tasks.formats.arguments import UnreadableArguments, parameters_of
from tasks.formats.codec import Codec
from tasks.formats.format import NO_SEAMS, Fault, Opening, Reading, Reply, Said, Seams, TokenFormat, ToolCall
from tasks.formats.marks import TAIL, Marks, Rule, Rulebook
from tasks.formats.readings import Reader
from tasks.formats.sections import Grammar, Piece, Tools

__all__ = ["RESERVED", "Family", "Piece", "ThinkingFormat", "Tools", "check"]

# Letters of a row's marks. A family gives the letters of its tool markers; any but these.
OPEN, CLOSE, END, OTHER = "(", ")", ".", "!"
_PREFIX: dict[Opening, str] = {"open": "o", "closed": "c", "unsaid": "u"}  # before a row's marks
_CUT, _ENDED = "l", "s"  # after them
RESERVED = f"{OPEN}{CLOSE}{END}{OTHER}{TAIL}oculs"

_OPENINGS: dict[str, Opening] = {OPEN: "open", CLOSE: "closed", END: "unsaid", "": "unsaid"}  # by a prompt's last mark


@dataclass(frozen=True)
class Family:
    """One family of models with one vocabulary.

    Attributes:
        name: of the format, as in a recipe.
        ids: every marker named below, and others worth pinning, with its id in the published tokenizer.
        ends: markers that end a turn when sampled; the first is the usual one.
        turns: markers with which a prompt's messages begin, the assistant's above all.
        openings: what the template's tail does to the reasoning with thinking on (True) and off (False).
        think: open and close marker; None if the family does not reason.
        lead: text that is sampled before the open marker, and that servers drop.
        seams: white space beside the markers of the reasoning; after the open marker only where that is sampled.
        switch: the template's variable that turns thinking off; empty if there is none.
        tools: how it calls tools; None if its markers are no ids of their own, or it cannot.
        end_after_tools: the marker that ends a turn whose last thing is a tool section, if another than `ends[0]`.
        probes: text that a wrongly converted tokenizer splits otherwise, with its right ids.
        vocabulary_sha256: of the published vocabulary file, where there is one for all of the family.
        strict: every added token of the tokenizer that is not named here is a fault inside an answer; otherwise only
            special ones are.
    """

    name: str
    ids: Mapping[str, int]
    ends: tuple[str, ...]
    turns: tuple[str, ...]
    openings: Mapping[bool, Opening]
    think: tuple[str, str] | None = None
    lead: str = ""
    seams: Seams = NO_SEAMS
    switch: str = ""
    tools: Tools | None = None
    end_after_tools: str = ""
    probes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    vocabulary_sha256: str = ""
    strict: bool = True

    def bind(self, codec: Codec, end_ids: Sequence[int] | None = None) -> TokenFormat:
        """This family with the ids of one tokenizer.

        Args:
            codec: the served model's tokenizer.
            end_ids: the ids with which the served model's configuration ends a turn; None if not known.

        Raises:
            TokenFormatError: the tokenizer or `end_ids` are not those of the family; gives both values.
        """
        check(self, codec, end_ids)
        return ThinkingFormat(self, codec)


def check(family: Family, codec: Codec, end_ids: Sequence[int] | None = None) -> None:
    """Hold a tokenizer, and the ids that end its model's turns, against a family's table.

    Raises:
        TokenFormatError: names the marker, and gives both values.
    """
    for marker, number in family.ids.items():
        if codec.markers.get(marker) != number:
            found = f"has id {codec.markers[marker]}" if marker in codec.markers else "is no control token"
            raise TokenFormatError(
                f"{marker} {found} in the target's tokenizer; it is {number} in the format {family.name}. Give the "
                "served model's own tokenizer, or set target.token_format to its family"
            )
    if family.vocabulary_sha256 and codec.sha256 != family.vocabulary_sha256:
        raise TokenFormatError(
            f"the target's vocabulary file has the sha256 {codec.sha256}; that of {family.name} has "
            f"{family.vocabulary_sha256}. Fetch the published file, and use no converted one"
        )
    for (text, known), ids in zip(family.probes.items(), codec.encode(list(family.probes)), strict=True):
        if tuple(ids) != known:
            raise TokenFormatError(
                f"the target's tokenizer gives {ids} for {text!r}; that of {family.name} gives {list(known)}. It was "
                "converted wrongly: take the published one"
            )
    end = family.ids[family.ends[0]]
    if end_ids is not None and end not in end_ids:
        raise TokenFormatError(
            f"the target's configuration ends a turn with {sorted(end_ids)}; {family.name} ends it with {end} "
            f"({family.ends[0]}). Correct eos_token_id in its generation_config.json, or set target.token_format"
        )


class ThinkingFormat:
    """One family bound to one tokenizer; see `TokenFormat`."""

    def __init__(self, family: Family, codec: Codec) -> None:
        ids = family.ids
        tools = dict(family.tools.letters) if family.tools else {}
        strange = codec.markers.values() if family.strict else codec.special_ids
        letters = dict.fromkeys(strange, OTHER) | {ids[text]: letter for text, letter in tools.items()}
        end = family.ends[0] if len(family.ends) == 1 else "(end of turn)"
        spelt = {letter: text for text, letter in tools.items()} | {END: end, OTHER: "(other control id)"}
        if family.think:
            letters |= {ids[family.think[0]]: OPEN, ids[family.think[1]]: CLOSE}
            spelt |= {OPEN: family.think[0], CLOSE: family.think[1]}
        letters |= {ids[text]: END for text in family.ends}
        turns = dict.fromkeys((ids[text] for text in family.turns), END)
        thoughts = {number: letter for number, letter in letters.items() if letter in (OPEN, CLOSE)}

        self.name = family.name
        self.end_ids = tuple(ids[text] for text in family.ends)
        self.seams, self.switch = family.seams, family.switch
        self.opens_in_prompt = dict(family.openings)
        sampled = (OPEN,) if family.openings[True] == "unsaid" else ()
        held = {*sampled, CLOSE, END, *tools.values()}
        self.reply_ids = tuple(sorted(number for number, letter in letters.items() if letter in held))

        self._codec, self._family = codec, family
        self._letters = letters
        self._tools = family.tools
        self._grammar = Grammar(family.tools) if family.tools else None
        self._marks = Marks(codec.vocab_size, letters)
        self._prompt_marks = Marks(codec.vocab_size, turns | thoughts)
        self._rules = Rulebook(_rules("".join(tools.values()), self._grammar), spelt)
        self._reader = Reader(
            {text: number for text, number in codec.markers.items() if number not in self.end_ids},
            family.think,
            family.lead,
            self.end_ids[0],
            ids[family.end_after_tools or family.ends[0]],
            family.tools,
        )

    def opening(self, prompt_ids: Ids) -> Opening:
        """The last of the markers that begin a message, open or close the reasoning."""
        return self.openings([prompt_ids])[0]

    def openings(self, prompts: Sequence[Ids]) -> list[Opening]:
        """The same of many prompts."""
        return [_OPENINGS[letter] for letter in self._prompt_marks.last(prompts)]

    def readings(self, said: Said, opening: Opening) -> list[Reading] | Fault:
        """Every way in which the text can have been sampled; see `TokenFormat`."""
        return self._reader.readings(said, opening)

    def faults(
        self, prompts: Sequence[Ids], completions: Sequence[Ids], finish_reasons: Sequence[str]
    ) -> list[Fault | None]:
        """What is wrong with the order of markers; see `TokenFormat`."""
        found: list[Fault | None] = []
        strange = dict(self._outside("completion", completions)) | dict(self._outside("prompt", prompts))
        for place, (row, opening, marks, reason) in enumerate(
            zip(completions, self.openings(prompts), self._marks.of(completions), finish_reasons, strict=True)
        ):
            if place in strange or not len(row):
                found.append(strange.get(place, Fault("empty_completion", "the answer has no ids")))
                continue
            fault = self._rules.fault(_PREFIX[opening] + marks + (_ENDED if reason in NATURAL_STOPS else _CUT))
            if fault and fault.reason == "end_id_missing":
                fault = fault._replace(detail=f"{fault.detail}; its last id is {row[-1]}")
            found.append(fault)
        return found

    def reply(self, completion: Ids, opening: Opening) -> Reply:
        """Reasoning up to the close marker, or to a tool section that comes first; see `TokenFormat`."""
        ids = completion[:-1] if len(completion) and completion[-1] in self.end_ids else completion
        letters = [(place, self._letters.get(number, "")) for place, number in enumerate(ids.tolist())]
        marked = [(place, letter) for place, letter in letters if letter]
        begin, end, rest = self._reasoning(marked, ids, opening)
        sections = self._sections([(place, letter) for place, letter in marked if place >= rest])
        texts: list[Ids] = [ids[begin:end]]
        for section in sections:
            texts.append(ids[rest : section[0][0]])
            rest = section[-1][0] + 1
            texts.append(ids[section[0][0] : rest])
            texts += [ids[a + 1 : b] for (a, _), (b, _) in zip(section, [*section[1:], (rest, "")], strict=True)]
        texts.append(ids[rest:])
        reasoning, *decoded = self._codec.decode([row.tolist() for row in texts])
        content, calls, whole = "", [], []
        own_lines = self._tools is not None and self._tools.own_lines
        for section in sections:
            before = decoded.pop(0)
            content += before.rstrip("\n") if own_lines else before
            whole.append(decoded.pop(0))
            pieces = [Piece(letter, decoded.pop(0)) for _, letter in section]
            calls += self._tools.read(pieces) if self._tools else ()
        after = decoded.pop(0)
        content += "" if sections and own_lines and not after.strip() else after
        return Reply(reasoning, content, tuple(calls), tuple(whole))

    def arguments(self, call: ToolCall, tools: Sequence[Mapping[str, Any]] | None) -> str:
        """A call's arguments as JSON; see `TokenFormat`."""
        if not self._tools or not call.name:
            raise UnreadableArguments(f"{call.arguments[:60]!r} is not of the form in which {self.name} calls")
        return self._tools.arguments(call.arguments, parameters_of(call.name, tools))

    def _reasoning(self, marked: Sequence[tuple[int, str]], ids: Ids, opening: Opening) -> tuple[int, int, int]:
        """Where the reasoning begins and ends, and where what comes after it begins."""
        place, letter = marked[0] if marked else (0, "")
        opened = letter == OPEN and self._codec.decode([ids[:place].tolist()])[0] in ("", self._family.lead)
        if self._family.think is None or not (opening == "open" or (opening == "unsaid" and opened)):
            return 0, 0, 0
        begin = place + 1 if opened else 0
        close = next((place for place, letter in marked if letter == CLOSE), None)
        if close is not None:
            return begin, close, close + 1
        sections = self._sections(marked)
        end = sections[0][0][0] if sections else len(ids)
        return begin, end, end

    def _sections(self, marked: Sequence[tuple[int, str]]) -> list[list[tuple[int, str]]]:
        """The places and letters of every whole tool section."""
        if not self._grammar or not self._tools:
            return []
        known = self._tools.letters.values()
        tools = [(place, letter) for place, letter in marked if letter in known]
        spans = self._grammar.find("".join(letter for _, letter in tools), cut=False)
        return [tools[span.begin : span.end] for span in spans]

    def _outside(self, name: str, rows: Sequence[Ids]) -> Iterator[tuple[int, Fault]]:
        """The rows with an id that is not of the vocabulary, most often none."""
        size = self._codec.vocab_size
        whole = np.concatenate(rows) if rows else np.empty(0, np.int32)
        if not len(whole) or 0 <= whole.min() <= whole.max() < size:
            return
        for place, row in enumerate(rows):
            if len(outside := row[(row < 0) | (row >= size)]):
                detail = f"the {name} has id {outside[0]}; the target's are 0 to {size - 1}"
                yield place, Fault("id_out_of_range", detail)


def _rules(tools: str, grammar: Grammar | None) -> list[Rule]:
    """The rules of all families, over prefix, marks and how the row ended."""
    before_tools = "[^" + re.escape(CLOSE + tools) + "]*"
    rules = [
        Rule("end_id_inside", r"\.(?![sl]$)", "an end of turn is not the last id"),
        Rule("end_id_missing", r"[^.]s$", "it ended by itself, yet not with an end of turn"),
        Rule("end_id_after_cut", r"\.l$", "it was cut by a limit, yet ends with an end of turn"),
        Rule("role_marker_in_answer", OTHER, "a control id that no answer holds"),
        Rule("open_marker_in_answer", r"^[oc].*\(|^u.+\(", "the reasoning is opened inside of the answer"),
        Rule("close_marker_unasked", r"^c.*\)|^u(?!\().*\)", "the reasoning is closed, yet nothing opened it"),
        Rule("close_marker_repeated", r"\).*\)", "the reasoning is closed more than once"),
        Rule("close_marker_missing", rf"^(?:o|u\(){before_tools}s$", "the reasoning is never closed"),
    ]
    if grammar:

        def torn(marks: str) -> bool:
            return grammar.torn(marks[1:-1].rstrip(TAIL), cut=marks[-1] == _CUT)

        rules.append(Rule("tool_markers_unbalanced", torn, "its tool markers are no whole sections"))
    return rules
