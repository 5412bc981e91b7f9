"""DeepSeek: `deepseek-r1` (R1 and its distills, whose prompt opens the reasoning), `deepseek-r1-0528` (the model opens
it itself) and `deepseek-v3.1` (the prompt opens or, with thinking off, closes it).

One format, several vocabularies: the tokenizer decides whether the ids are those of DeepSeek, Qwen or Llama. R1 and
V3.1 have ids for tool calls; what the distills write of them is plain text to the tokenizer, hence content.

Limits: after a tool's output no template writes an assistant header, so that such a prompt leaves the reasoning as the
turn before did. The templates begin with the marker that the tokenizer would add again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import regex

from tasks.formats.codec import Codec
from tasks.formats.format import NO_SEAMS, Opening, Seams, TokenFormat, ToolCall
from tasks.formats.thinking import Family, Piece, Tools

BOS, EOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
THINK = ("<think>", "</think>")

_LETTERS = {
    "<｜tool▁calls▁begin｜>": "[",
    "<｜tool▁call▁begin｜>": "{",
    "<｜tool▁sep｜>": ":",
    "<｜tool▁call▁end｜>": "}",
    "<｜tool▁calls▁end｜>": "]",
}
_GRAMMAR = r"\[(?:\{:\})+\]"
_FENCED = regex.compile(r"([^\n]*)\n```json\n(.*)\n```\s*", regex.DOTALL)  # R1: name, then the arguments in a fence


def fenced_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """R1's calls: `function`, separator, name, arguments in a fence; without the fence there is no name to be had."""
    found = [(piece.text, _FENCED.fullmatch(piece.text)) for piece in pieces if piece.letter == ":"]
    return [ToolCall(match[1], match[2]) if match else ToolCall("", text) for text, match in found]


def bare_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """V3.1's calls: name, separator, arguments."""
    names = [piece.text.strip() for piece in pieces if piece.letter == "{"]
    arguments = [piece.text for piece in pieces if piece.letter == ":"]
    return [ToolCall(name, text) for name, text in zip(names, arguments, strict=False)]


@dataclass(frozen=True)
class Vocabulary:
    """The ids of one tokenizer; `tools` says whether tool calls have ids in it."""

    ids: Mapping[str, int]
    probes: Mapping[str, tuple[int, ...]]
    tools: bool = False


_PROBE = "I'll pay 12345 for 中文abc  \r\n\tx"  # contraction, digits, Han beside Latin, two spaces, line end
_QWEN_PROBE = {_PROBE: (40, 3278, 2291, 220, 16, 17, 18, 19, 20, 369, 72858, 16744, 13683, 10419, 10225)}

_DEEPSEEK = Vocabulary(
    {
        BOS: 0,
        EOS: 1,
        "<think>": 128798,
        "</think>": 128799,
        USER: 128803,
        ASSISTANT: 128804,
        "<|EOT|>": 128805,
        "<｜tool▁calls▁begin｜>": 128806,
        "<｜tool▁calls▁end｜>": 128807,
        "<｜tool▁call▁begin｜>": 128808,
        "<｜tool▁call▁end｜>": 128809,
        "<｜tool▁outputs▁begin｜>": 128810,
        "<｜tool▁outputs▁end｜>": 128811,
        "<｜tool▁output▁begin｜>": 128812,
        "<｜tool▁output▁end｜>": 128813,
        "<｜tool▁sep｜>": 128814,
    },
    {_PROBE: (43, 5922, 3353, 223, 6895, 1883, 362, 223, 21134, 32372, 262, 204, 201, 51669)},
    tools=True,
)
_QWEN_DISTILL = Vocabulary(
    {EOS: 151643, USER: 151644, ASSISTANT: 151645, BOS: 151646, "<think>": 151648, "</think>": 151649}, _QWEN_PROBE
)
_LLAMA_DISTILL = Vocabulary(
    {BOS: 128000, EOS: 128001, USER: 128011, ASSISTANT: 128012, "<think>": 128013, "</think>": 128014},
    {_PROBE: (40, 3358, 2343, 220, 4513, 1774, 369, 73958, 17161, 13997, 10636, 10436)},
)
_QWEN3_DISTILL = Vocabulary(
    {BOS: 151643, EOS: 151645, "<think>": 151667, "</think>": 151668, USER: 151669, ASSISTANT: 151670}, _QWEN_PROBE
)


@dataclass(frozen=True)
class Variants:
    """One format with several vocabularies, the first of them the one that a strange tokenizer is held against."""

    name: str
    vocabularies: tuple[Vocabulary, ...]
    openings: Mapping[bool, Opening]
    read: Tools
    seams: Seams = NO_SEAMS

    def bind(self, codec: Codec, end_ids: Sequence[int] | None = None) -> TokenFormat:
        """The format with the ids of one tokenizer.

        Raises:
            TokenFormatError: the tokenizer or `end_ids` are of none of the vocabularies; gives both values.
        """
        for vocabulary in self.vocabularies:
            if all(codec.markers.get(name) == vocabulary.ids[name] for name in _TELLING):
                return self.family(vocabulary).bind(codec, end_ids)
        return self.family(self.vocabularies[0]).bind(codec, end_ids)  # refused, with both values

    def family(self, vocabulary: Vocabulary) -> Family:
        """The table of one vocabulary."""
        return Family(
            name=self.name,
            ids=vocabulary.ids,
            ends=(EOS,),
            turns=(USER, ASSISTANT),
            openings=self.openings,
            think=THINK,
            switch="thinking" if self.openings[False] == "closed" else "",
            seams=self.seams,
            tools=self.read if vocabulary.tools else None,
            probes=vocabulary.probes,
        )


_TELLING = (EOS, ASSISTANT)

_FENCED_TOOLS = Tools(_LETTERS, _GRAMMAR, fenced_calls)
_BARE_TOOLS = Tools(_LETTERS, _GRAMMAR, bare_calls)

_VARIANTS = (
    Variants(
        "deepseek-r1",
        (_DEEPSEEK, _QWEN_DISTILL, _LLAMA_DISTILL),
        {True: "open", False: "open"},
        _FENCED_TOOLS,
        Seams(before_close="\n", after_close="\n\n"),
    ),
    Variants(
        "deepseek-r1-0528",
        (_DEEPSEEK, _QWEN3_DISTILL),
        {True: "unsaid", False: "unsaid"},
        _FENCED_TOOLS,
        Seams("\n", "\n", "\n\n"),
    ),
    Variants("deepseek-v3.1", (_DEEPSEEK,), {True: "open", False: "closed"}, _BARE_TOOLS),
)
FORMATS = {variants.name: variants.bind for variants in _VARIANTS}


def recognise(codec: Codec, template_text: str) -> str:
    """The format of a DeepSeek tokenizer with its template, empty if it is not one."""
    vocabularies = [one for variants in _VARIANTS for one in variants.vocabularies]
    if not any(all(codec.markers.get(name) == number for name, number in one.ids.items()) for one in vocabularies):
        return ""
    tail = template_text.rpartition("add_generation_prompt")[2]
    if "thinking" in tail:
        return "deepseek-v3.1" if "<｜tool▁calls▁begin｜>" in codec.markers else ""
    if "<think>" in tail:
        return "deepseek-r1"
    return "deepseek-r1-0528" if "</think>" in template_text else ""
