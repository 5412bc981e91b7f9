"""Harmony, the format of `gpt-oss`: an answer is messages one after another, each with a channel and maybe a recipient.

The prompt ends in `<|start|>assistant`, whatever the reasoning effort; all that follows is sampled: the header of the
first message, `analysis` before `final`, and `<|return|>`, or `<|call|>` after a message to a tool.

Limits: a text API strips the headers, so that they are put back in their usual form, `analysis` for the reasoning and
`final` for the content; one that went otherwise (several analysis messages, a preamble in `commentary`, a cut inside a
header) has another count, and its ids are to be had from the engine only. That a call has a recipient is not seen in
the markers, and not checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import regex

from schemas.answers import NATURAL_STOPS
from schemas.ragged import Ids
from tasks.formats.arguments import json_arguments, parameters_of
from tasks.formats.codec import Codec
from tasks.formats.format import Fault, Opening, Part, Reading, Reply, Said, Seams, TokenFormat, ToolCall
from tasks.formats.marks import Marks, Rule, Rulebook
from tasks.formats.thinking import Family, check

NAME = "gpt-oss"

_RETURN, _CALL, _START, _END = "<|return|>", "<|call|>", "<|start|>", "<|end|>"
_CHANNEL, _MESSAGE, _CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
_TABLE = Family(
    name=NAME,
    ids={
        "<|startoftext|>": 199998,
        "<|endoftext|>": 199999,
        _RETURN: 200002,
        _CONSTRAIN: 200003,
        _CHANNEL: 200005,
        _START: 200006,
        _END: 200007,
        _MESSAGE: 200008,
        _CALL: 200012,
        "<|endofprompt|>": 200018,
    },
    ends=(_RETURN, _CALL, "<|endoftext|>"),
    turns=(_START,),
    openings={True: "unsaid", False: "unsaid"},
    # contraction, digits, Han beside Latin, two spaces, line end
    probes={"I'll pay 12345 for 中文abc  \r\n\tx": (67504, 2777, 220, 7633, 2548, 395, 83711, 26682, 18668, 21395)},
)

_LETTERS = {
    _CHANNEL: "C",
    _CONSTRAIN: "N",
    _MESSAGE: "M",
    _END: "E",
    _START: "S",
    _RETURN: "R",
    _CALL: "K",
    "<|endoftext|>": "R",
}
_OTHER = "X"
# Letters of a row, then "s" if it ended by itself, "l" if it was cut; "_" before these if ordinary ids were last.
_RULES = (
    Rule("empty_completion", r"^[sl]$", "the answer has no ids"),
    Rule("role_marker_in_answer", _OTHER, "a control id that no message holds"),
    Rule("end_id_inside", r"[RK](?![sl]$)", "an end of turn is not the last id"),
    Rule("end_id_missing", r"[^RK]s$", "it ended by itself without an end of turn"),
    Rule("end_id_after_cut", r"[RK]l$", "it was cut by a limit, yet ends in an end of turn"),
    Rule("tool_markers_unbalanced", r"(?<!C)N|N(?!M|_?l$)", "the type of a message is not in its header"),
    Rule("close_marker_missing", r"^(?!C|_?l$)|C(?!N?M|N?_?l$)", "a message does not begin with a whole header"),
    Rule("close_marker_repeated", r"MM", "a header ends twice"),
    Rule("open_marker_in_answer", r"MC", "a header begins inside a message"),
    Rule("role_marker_in_answer", r"(?<!E)S|S(?!C|_?l$)|E(?!S|l$)", "messages do not follow one another"),
)

_TEXTS = {letter: text for text, letter in reversed(_LETTERS.items())}
_MARKER = regex.compile("|".join(regex.escape(text) for text in _LETTERS))
_RAW = regex.compile(r"(?: to=\S+?)?" + regex.escape(_CHANNEL))  # how a completion begins of which nothing was stripped
_RECIPIENT = regex.compile(r"to=(\S+)")


class Harmony:
    """`gpt-oss` bound to the ids of its tokenizer; see `TokenFormat`."""

    name = NAME
    seams = Seams()
    switch = ""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._ids = {text: codec.markers[text] for text in _LETTERS}
        self._letters = dict.fromkeys(codec.markers.values(), _OTHER) | {
            number: _LETTERS[text] for text, number in self._ids.items()
        }
        self._marks = Marks(codec.vocab_size, self._letters)
        self._rules = Rulebook(_RULES, _TEXTS | {_OTHER: "(other)"})
        self.end_ids = tuple(self._ids[text] for text in _TABLE.ends)
        self.reply_ids = tuple(self._ids.values())
        self.opens_in_prompt: dict[bool, Opening] = dict(_TABLE.openings)

    def opening(self, prompt_ids: Ids) -> Opening:
        """`unsaid`, unless the prompt goes on behind `<|start|>assistant`: then it opened a message itself."""
        return self.openings([prompt_ids])[0]

    def openings(self, prompts: Sequence[Ids]) -> list[Opening]:
        """The same of many prompts."""
        return ["unsaid" if letter == "S" else "open" for letter in self._marks.last(prompts)]

    def readings(self, said: Said, opening: Opening) -> list[Reading] | Fault:
        """The messages that a text stands for; see `TokenFormat`."""
        if opening != "unsaid":
            return Fault("open_marker_in_answer", "the prompt begins the answer's first message; end it in the header")
        reasoning, content = said.reasoning or "", said.content or ""
        if not reasoning and not content and not said.ended:
            return Fault("empty_completion", "the answer has neither reasoning nor content")
        if not reasoning and _RAW.match(content):
            plain = Reading(self._final(content, said.ended), "marker_text_in_answer")
            return [Reading(self._raw(content, said.ended)), plain]
        if not reasoning:
            return [Reading(self._final(content, said.ended))]
        analysis = self._message("analysis", reasoning)
        if content:
            return [Reading((*analysis, *self._next(), *self._final(content, said.ended)))]
        if not said.ended:
            return [Reading(analysis)]
        return [
            Reading((*analysis, *self._next(), *self._final("", ended=True)), "unexplained"),
            Reading((*analysis, self._ids[_RETURN]), "unexplained"),
        ]

    def faults(
        self, prompts: Sequence[Ids], completions: Sequence[Ids], finish_reasons: Sequence[str]
    ) -> list[Fault | None]:
        """What is wrong with the order of markers; see `TokenFormat`."""
        marks = self._marks.of(completions)
        found = [
            self._rules.fault(letters + ("s" if reason in NATURAL_STOPS else "l"))
            for letters, reason in zip(marks, finish_reasons, strict=True)
        ]
        for place, row in enumerate(completions):
            if len(row) and not 0 <= int(row.min()) <= int(row.max()) < self._codec.vocab_size:
                strange = next(int(one) for one in row if not 0 <= one < self._codec.vocab_size)
                found[place] = Fault("id_out_of_range", f"id {strange}, the vocabulary has {self._codec.vocab_size}")
        return found

    def reply(self, completion: Ids, opening: Opening) -> Reply:
        """Analysis is reasoning, messages to a tool are calls, all others content; see `TokenFormat`."""
        at = [place for place, number in enumerate(completion.tolist()) if number in self._letters]
        letters = ["", *(self._letters[int(completion[place])] for place in at)]
        texts = self._codec.decode([row[1 if n else 0 :].tolist() for n, row in enumerate(np.split(completion, at))])
        reasoning, content, calls, sections, role, channel, header = "", "", [], [], "", "", ""
        for letter, text in zip(letters, texts, strict=True):
            header = header + _TEXTS.get(letter, "") + text if letter not in ("", "S") else text
            if letter in ("", "S"):
                role, channel = text, ""
            elif letter == "C":
                channel = text
            elif letter == "M" and (recipient := _RECIPIENT.search(f"{role} {channel}")):
                calls.append(ToolCall(recipient[1].removeprefix("functions."), text))
                sections.append(header)
            elif letter == "M" and channel.strip() == "analysis":
                reasoning += text
            elif letter == "M":
                content += text
        return Reply(reasoning, content, tuple(calls), tuple(sections))

    def arguments(self, call: ToolCall, tools: Sequence[Mapping[str, Any]] | None) -> str:
        """A call's arguments, which are JSON; see `TokenFormat`."""
        return json_arguments(call.arguments, parameters_of(call.name, tools))

    def _message(self, channel: str, text: str) -> tuple[Part, ...]:
        return (self._ids[_CHANNEL], channel, self._ids[_MESSAGE], *([text] if text else []))

    def _next(self) -> tuple[Part, ...]:
        return (self._ids[_END], self._ids[_START], "assistant")

    def _final(self, text: str, ended: bool) -> tuple[Part, ...]:
        return (*self._message("final", text), *([self._ids[_RETURN]] if ended else []))

    def _raw(self, text: str, ended: bool) -> tuple[Part, ...]:
        parts: list[Part] = []
        begin = 0
        for marker in _MARKER.finditer(text):
            parts += [text[begin : marker.start()]] * (marker.start() > begin) + [self._ids[marker[0]]]
            begin = marker.end()
        parts += [text[begin:]] * (begin < len(text))
        if ended and parts[-1] not in self.end_ids:
            last_header = text.rpartition(_START)[2].partition(_MESSAGE)[0]
            parts.append(self._ids[_CALL if _RECIPIENT.search(last_header) else _RETURN])
        return tuple(parts)


def bind(codec: Codec, end_ids: Sequence[int] | None = None) -> TokenFormat:
    """`gpt-oss` with the ids of its tokenizer.

    Raises:
        TokenFormatError: the tokenizer or `end_ids` are not those of the family; gives both values.
    """
    check(_TABLE, codec, end_ids)
    return Harmony(codec)


FORMATS = {NAME: bind}


def recognise(codec: Codec, template_text: str) -> str:
    """`gpt-oss` if the tokenizer and the template are its own, else empty."""
    fits = all(codec.markers.get(name) == number for name, number in _TABLE.ids.items() if name in _LETTERS)
    return NAME if fits and _CHANNEL in template_text else ""
