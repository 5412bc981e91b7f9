"""GLM: `glm-4.5` (4.5, 4.5V, 4.6: the model opens the reasoning itself, on a line of its own where the prompt has not
begun one) and `glm-4.7` (4.7, 4.7-Flash, 5: the prompt opens it, or closes it with thinking off).

No marker of its own ends a turn: the model samples the marker of whoever speaks next, `<|user|>` after an answer and
`<|observation|>` after a tool call. A tool call is a pair of markers, with a name and pairs of argument markers in it.

Limits: text does not say which end was sampled, and as all are one id the billed count cannot say it either; what is
taken is `<|observation|>` if the last thing is a call, else `<|user|>`, never `<|endoftext|>`. Where that matters, ask
for ids. 4.7 exists with the vocabulary of 4.5 and with a longer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import regex

from tasks.formats.arguments import Tags
from tasks.formats.codec import Codec
from tasks.formats.format import Opening, Seams, TokenFormat, ToolCall
from tasks.formats.thinking import Family, Piece, Tools

_IDS_45 = {
    "<|endoftext|>": 151329,
    "[gMASK]": 151331,
    "<sop>": 151333,
    "<|system|>": 151335,
    "<|user|>": 151336,
    "<|assistant|>": 151337,
    "<|observation|>": 151338,
    "<think>": 151350,
    "</think>": 151351,
    "<tool_call>": 151352,
    "</tool_call>": 151353,
    "<tool_response>": 151354,
    "</tool_response>": 151355,
    "<arg_key>": 151356,
    "</arg_key>": 151357,
    "<arg_value>": 151358,
    "</arg_value>": 151359,
}
_IDS_FLASH = {name: number - 151329 + 154820 for name, number in _IDS_45.items()}  # longer, the same order

# contraction, digits, Han beside Latin, two spaces, line end
_PROBES = {
    "I'll pay 12345 for 中文abc  \r\n\tx": (40, 3278, 2291, 220, 108714, 100461, 369, 117604, 13674, 10414, 10220)
}

_LETTERS = {
    "<tool_call>": "[",
    "</tool_call>": "]",
    "<arg_key>": "k",
    "</arg_key>": "K",
    "<arg_value>": "v",
    "</arg_value>": "V",
}
_GRAMMAR = r"\[(?:kKvV)*\]"
_TEXTS = {letter: text for text, letter in _LETTERS.items()}
_ARGUMENTS = Tags(
    regex.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>", regex.DOTALL), "</arg_value>", undeclared="JSON"
)


def argument_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """The calls `NAME<arg_key>..`; the arguments are all from the first argument marker on, as text."""
    calls: list[ToolCall] = []
    name, arguments = "", ""
    for piece in pieces:
        if piece.letter == "[":
            name, arguments = piece.text.strip(), ""
        elif piece.letter == "]":
            calls.append(ToolCall(name, arguments))
        else:
            arguments += _TEXTS[piece.letter] + piece.text
    return calls


def _family(name: str, ids: Mapping[str, int], on: Opening) -> Family:
    return Family(
        name=name,
        ids=ids,
        ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
        turns=("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        openings={True: on, False: "closed"},
        think=("<think>", "</think>"),
        switch="enable_thinking",
        lead="\n" if on == "unsaid" else "",
        seams=Seams(after_close="\n" if on == "unsaid" else ""),
        tools=Tools(_LETTERS, _GRAMMAR, argument_calls, _ARGUMENTS.arguments, own_lines=True),
        end_after_tools="<|observation|>",
        probes=_PROBES,
    )


_GLM_45 = _family("glm-4.5", _IDS_45, on="unsaid")
_GLM_47 = _family("glm-4.7", _IDS_45, on="open")
_GLM_47_FLASH = _family("glm-4.7", _IDS_FLASH, on="open")


def _bind_47(codec: Codec, end_ids: Sequence[int] | None) -> TokenFormat:
    flash = codec.markers.get("<|user|>") == _IDS_FLASH["<|user|>"]
    return (_GLM_47_FLASH if flash else _GLM_47).bind(codec, end_ids)


FORMATS = {"glm-4.5": _GLM_45.bind, "glm-4.7": _bind_47}


def recognise(codec: Codec, template_text: str) -> str:
    """The format of a GLM tokenizer with its template, empty if it is not one."""
    known = (_IDS_45, _IDS_FLASH)
    if not any(all(codec.markers.get(name) == number for name, number in ids.items()) for ids in known):
        return ""
    tail = template_text.rpartition("add_generation_prompt")[2]
    if "<think>" in tail.replace("<think></think>", ""):
        return "glm-4.7"
    return "glm-4.5" if "<think></think>" in tail else ""
