"""Qwen: `qwen3` (both modes of one model), `qwen3.5` (opens the reasoning itself), `qwq` (always reasons).

The prompt of `qwen3` says nothing about reasoning, so that `<think>` is sampled; that of the other two ends in it, so
that it never is. A tool call is one pair of markers, and parallel calls are pairs one after another: what is between
the markers is JSON, except `qwen3.5`, which writes `<function=NAME>` and `<parameter=NAME>` as plain text.

Limits: Qwen3-Thinking-2507 opens the reasoning in the prompt and is `qwq` in all else; Qwen3-Instruct-2507 is `qwen3`
whose answers have no reasoning. The prompt's text is put into NFC by the tokenizer, an answer's never.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import regex

from tasks.formats.arguments import Tags
from tasks.formats.codec import Codec
from tasks.formats.format import Opening, Seams, ToolCall
from tasks.formats.thinking import Family, Piece, Tools

_IDS_3 = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<tool_call>": 151657,
    "</tool_call>": 151658,
    "<tool_response>": 151665,
    "</tool_response>": 151666,
    "<think>": 151667,
    "</think>": 151668,
}
_IDS_35 = {name: number - 151643 + 248044 for name, number in _IDS_3.items()}  # a longer vocabulary, the same order

_TELLING = ("<|im_end|>", "<think>")  # DeepSeek's distill has the other names of the vocabulary, not the first of these

_PROBE = "I'll pay 12345 for 中文abc  \r\n\tx"  # contraction, digits, Han beside Latin, two spaces, line end
_PROBES_3 = {_PROBE: (40, 3278, 2291, 220, 16, 17, 18, 19, 20, 369, 72858, 16744, 13683, 10419, 10225)}
_PROBES_35 = {_PROBE: (40, 3172, 2216, 220, 16, 17, 18, 19, 20, 364, 220, 99986, 13290, 10109, 9921)}

_LETTERS = {"<tool_call>": "[", "</tool_call>": "]"}
_GRAMMAR = r"\[\]"

_NAME_FIRST = regex.compile(r'\s*\{\s*"name"\s*:\s*')
_ARGUMENTS_NEXT = regex.compile(r'\s*,\s*"arguments"\s*:\s*')
_BRACE = regex.compile(r"\s*\}\s*")
_FUNCTION = regex.compile(r"\s*<function=([^>\n]*)>\n?(.*)</function>\s*", regex.DOTALL)


def json_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """The calls `{"name": NAME, "arguments": JSON}`, their arguments as they were written, spaces and order kept.

    What is not of that form keeps its text, and has no name.
    """
    return [_json_call(piece.text) for piece in pieces if piece.letter == "["]


def function_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """The calls `<function=NAME> ... </function>`; the arguments are the text between, with its `<parameter=..>`."""
    found = [(piece.text, _FUNCTION.fullmatch(piece.text)) for piece in pieces if piece.letter == "["]
    return [ToolCall(match[1], match[2]) if match else ToolCall("", text) for text, match in found]


def _json_call(text: str) -> ToolCall:
    unread = ToolCall("", text)
    try:
        if not (head := _NAME_FIRST.match(text)):
            return unread
        name, end = _SCANNER.raw_decode(text, head.end())
        if not isinstance(name, str) or not (between := _ARGUMENTS_NEXT.match(text, end)):
            return unread
        _, end = _SCANNER.raw_decode(text, between.end())
    except (ValueError, RecursionError):
        return unread
    return ToolCall(name, text[between.end() : end]) if _BRACE.fullmatch(text, end) else unread


_SCANNER = json.JSONDecoder(strict=False)

_JSON = Tools(_LETTERS, _GRAMMAR, json_calls, own_lines=True)
_PARAMETERS = Tags(regex.compile(r"<parameter=([^>\n]*)>"), "</parameter>", line_ends=True)
_XML = Tools(_LETTERS, _GRAMMAR, function_calls, _PARAMETERS.arguments, own_lines=True)


def _family(name: str, off: Opening, on: Opening, tools: Tools, newer: bool = False) -> Family:
    return Family(
        name=name,
        ids=_IDS_35 if newer else _IDS_3,
        ends=("<|im_end|>", "<|endoftext|>"),
        turns=("<|im_start|>",),
        openings={True: on, False: off},
        think=("<think>", "</think>"),
        switch="enable_thinking" if off == "closed" else "",
        seams=Seams("\n" if on == "unsaid" else "", "\n", "\n\n"),
        tools=tools,
        probes=_PROBES_35 if newer else _PROBES_3,
    )


_FAMILIES = (
    _family("qwen3", off="closed", on="unsaid", tools=_JSON),
    _family("qwen3.5", off="closed", on="open", tools=_XML, newer=True),
    _family("qwq", off="open", on="open", tools=_JSON),
)
FORMATS = {family.name: family.bind for family in _FAMILIES}


def recognise(codec: Codec, template_text: str) -> str:
    """The format of a Qwen tokenizer with its template, empty if it is not one."""
    held = [codec.markers.get(marker) for marker in _TELLING]
    newer = held == [_IDS_35[marker] for marker in _TELLING]
    older = held == [_IDS_3[marker] for marker in _TELLING]
    functions = "<function=" in template_text  # Qwen3-Coder, with the older vocabulary, is of neither format
    if "<|im_start|>" not in template_text or not (newer if functions else older):
        return ""
    if newer:
        return "qwen3.5"
    tail = template_text.rpartition("add_generation_prompt")[2]
    return "qwq" if "<think>" in tail and "enable_thinking" not in tail else "qwen3"
