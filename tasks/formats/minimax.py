"""MiniMax M2 (M2, M2.1, M2.5, M2.7): `minimax-m2`. The prompt opens the reasoning and there is no way to turn it off.

A tool section is a pair of markers with one `<invoke name="..">` after another in it, which are plain text.

Limits: M3 has other markers for reasoning and tools and is not of this format. The prompt's text is put into NFC by the
tokenizer, an answer's never.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

from tasks.formats.arguments import Tags
from tasks.formats.codec import Codec
from tasks.formats.format import Seams, ToolCall
from tasks.formats.thinking import Family, Piece, Tools

_IDS = {
    "]!p~[": 200000,
    "]~b]": 200019,
    "[e~[": 200020,
    "]!d~[": 200021,
    "]~!b[": 200034,
    "<think>": 200050,
    "</think>": 200051,
    "<minimax:tool_call>": 200052,
    "</minimax:tool_call>": 200053,
}

# contraction, digits, Han beside Latin, two spaces, line end
_PROBES = {"I'll pay 12345 for 中文abc  \r\n\tx": (43117, 2615, 32, 10010, 2879, 360, 186512, 34972, 64720, 63296)}

_INVOKE = regex.compile(r"""<invoke name=(["']?)(?P<name>[^"'>]*)\1>(?P<arguments>.*?)</invoke>""", regex.DOTALL)
_PARAMETERS = Tags(regex.compile(r"""<parameter name=["']?([^"'>]*)["']?>"""), "</parameter>")


def invoke_calls(pieces: Sequence[Piece]) -> list[ToolCall]:
    """The calls of a section; the arguments are the text between `<invoke ..>` and its end, `<parameter ..>` and all.

    A section with anything else in it is one call without a name.
    """
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.letter != "[":
            continue
        if _INVOKE.sub("", piece.text).strip():
            calls.append(ToolCall("", piece.text))
        else:
            calls += [ToolCall(match["name"], match["arguments"]) for match in _INVOKE.finditer(piece.text)]
    return calls


_FAMILY = Family(
    name="minimax-m2",
    ids=_IDS,
    ends=("[e~[",),
    turns=("]~b]",),
    openings={True: "open", False: "open"},
    think=("<think>", "</think>"),
    seams=Seams(before_close="\n", after_close="\n\n"),
    tools=Tools(
        {"<minimax:tool_call>": "[", "</minimax:tool_call>": "]"},
        r"\[\]",
        invoke_calls,
        _PARAMETERS.arguments,
        own_lines=True,
    ),
    probes=_PROBES,
)
FORMATS = {_FAMILY.name: _FAMILY.bind}


def recognise(codec: Codec, template_text: str) -> str:
    """The format of a MiniMax M2 tokenizer with its template, empty if it is not one."""
    fits = all(codec.markers.get(name) == number for name, number in _IDS.items())
    return _FAMILY.name if fits and "<minimax:tool_call>" in template_text else ""
