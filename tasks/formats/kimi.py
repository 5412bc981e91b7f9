"""Kimi: `kimi-k2` (does not reason), `kimi-k2-thinking` (samples the open marker itself), `kimi-k2.5` and `kimi-k2.6`
(the prompt opens the reasoning, or opens and closes it with thinking off).

All share one vocabulary file, so that its hash does not tell them apart; their templates do. A tool section holds calls
`functions.NAME:N`, which may begin while the model still reasons.

Limits: what the templates make of a call's id in the history is the caller's; `reply` gives it in its usual form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from tasks.formats.codec import Codec
from tasks.formats.format import Opening, ToolCall
from tasks.formats.thinking import Family, Piece, Tools

VOCABULARY_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"

_IDS = {
    "[BOS]": 163584,
    "[EOS]": 163585,
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "[PAD]": 163839,
}
_THINK = ("<think>", "</think>")
_THINK_IDS = {"<think>": 163606, "</think>": 163607}

_LETTERS = {
    "<|tool_calls_section_begin|>": "[",
    "<|tool_call_begin|>": "{",
    "<|tool_call_argument_begin|>": ":",
    "<|tool_call_end|>": "}",
    "<|tool_calls_section_end|>": "]",
}
_GRAMMAR = r"\[(?:\{:\})+\]"
_CALL_ID = re.compile(r"(?:functions\.)?(?P<name>[^\s:]+?)(?::(?P<number>\d+))?")

# Han beside Latin, one word to a converted tokenizer; a marker that some libraries made up; white space.
_PROBES = {
    "中文abc": (16717, 8497),
    "<|system|>": (27, 91, 14062, 91, 29),
    "I'll pay 12345 for it  \r\n\tx": (65447, 3202, 220, 6694, 2899, 395, 483, 13435, 18241),
}


def section_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """The calls of a section; ids that are not `functions.NAME:N` are put into that form, N being the place."""
    calls: list[ToolCall] = []
    for head, body in pairwise(pieces):
        if head.letter != "{":
            continue
        name = head.text.strip()
        number = str(len(calls))
        if found := _CALL_ID.fullmatch(name):
            name, number = found["name"], found["number"] or number
        calls.append(ToolCall(name, body.text, f"functions.{name}:{number}"))
    return calls


def _family(name: str, on: Opening, off: Opening, thinks: bool = True) -> Family:
    return Family(
        name=name,
        ids=_IDS | _THINK_IDS if thinks else _IDS,
        ends=("<|im_end|>",),
        turns=("<|im_user|>", "<|im_assistant|>", "<|im_system|>"),
        openings={True: on, False: off},
        think=_THINK if thinks else None,
        switch="thinking" if off == "closed" else "",
        tools=Tools(_LETTERS, _GRAMMAR, section_calls),
        probes=_PROBES,
        vocabulary_sha256=VOCABULARY_SHA256,
    )


_FAMILIES = (
    _family("kimi-k2", on="unsaid", off="unsaid", thinks=False),
    _family("kimi-k2-thinking", on="unsaid", off="unsaid"),
    _family("kimi-k2.5", on="open", off="closed"),
    _family("kimi-k2.6", on="open", off="closed"),
)
FORMATS = {family.name: family.bind for family in _FAMILIES}


def recognise(codec: Codec, template_text: str) -> str:
    """The format of a Kimi tokenizer with its template, empty if it is not one."""
    if any(codec.markers.get(name) != number for name, number in _IDS.items()) or "<|im_middle|>" not in template_text:
        return ""
    if "<think>" in template_text.rpartition("add_generation_prompt")[2]:
        return "kimi-k2.6" if "preserve_thinking" in template_text else "kimi-k2.5"
    return "kimi-k2-thinking" if "<think>" in template_text else "kimi-k2"
