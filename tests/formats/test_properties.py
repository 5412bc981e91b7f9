"""For any text: parts keep their text and their ids in every real tokenizer, and every format reads back what it says.

The texts hold markers of the tokenizer, emojis joined of several, combining marks, CRLF, NUL, lone controls, and runs
of spaces; only half a surrogate pair is left out, which has no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks.formats.format import Fault, Opening, Part, Said
from tests.formats.bound import bound
from tests.formats.texts import tricky
from tests.tokenizers import NAMES, codec

CONTROLS = "".join(map(chr, (*range(32), *range(0x7F, 0xA0), 0x200B, 0x200D, 0x202E, 0xFE0F, 0x2028)))
RUNS = st.tuples(st.sampled_from(" \t\n\u3000="), st.integers(2, 80)).map(lambda run: run[0] * run[1])
TEXT = st.lists(tricky | RUNS | st.text(CONTROLS, max_size=4), max_size=5).map("".join)

# Every format with every vocabulary that it has, and its reasoning's markers.
THINK = ("<think>", "</think>")
BOUND = {
    ("kimi-k2", "kimi"): (),
    ("kimi-k2-thinking", "kimi"): THINK,
    ("kimi-k2.5", "kimi"): THINK,
    ("kimi-k2.6", "kimi"): THINK,
    ("qwen3", "qwen-3"): THINK,
    ("qwen3.5", "qwen-3.5"): THINK,
    ("qwq", "qwq-32b"): THINK,
    ("deepseek-r1", "deepseek-r1"): THINK,
    ("deepseek-r1", "deepseek-r1-distill-qwen-7b"): THINK,
    ("deepseek-r1", "deepseek-r1-distill-llama-8b"): THINK,
    ("deepseek-r1-0528", "deepseek-r1-0528-qwen3-8b"): THINK,
    ("deepseek-v3.1", "deepseek-v3.1"): THINK,
    ("glm-4.5", "glm-4.5v"): THINK,
    ("glm-4.7", "glm-4.7-flash"): THINK,
    ("minimax-m2", "minimax"): THINK,
}
REASONING = [pair for pair, think in BOUND.items() if think]


def written(tokenizer: str, parts: Sequence[Part]) -> str:
    """The text of parts, markers written out."""
    names = {number: text for text, number in codec(tokenizer).markers.items()}
    return "".join(part if isinstance(part, str) else names[part] for part in parts)


def encoded(tokenizer: str, parts: Sequence[Part]) -> list[int]:
    """The ids of parts, each text encoded on its own, as the model had sampled them."""
    own = codec(tokenizer)
    return [number for part in parts for number in (own.encode([part])[0] if isinstance(part, str) else [part])]


@st.composite
def mixed(draw: st.DrawFn, tokenizer: str, least: int = 0) -> str:
    """Text with the tokenizer's own markers in it."""
    names = st.sampled_from(sorted(codec(tokenizer).markers)[:80])
    return "".join(draw(st.lists(TEXT | names, min_size=least, max_size=4)))


def outer(name: str, tokenizer: str, opening: Opening, reasoning: str, content: str, ended: bool) -> list[Part]:
    """An answer as the format says that it is sampled, the markers in its texts being text."""
    own = bound(name, tokenizer)
    marker = codec(tokenizer).markers
    head: list[Part] = [marker[THINK[0]]] if opening == "unsaid" else []
    end: list[Part] = [own.format.end_ids[0]] if ended else []
    return [*head, *([reasoning] if reasoning else []), marker[THINK[1]], *([content] if content else []), *end]


@pytest.mark.parametrize("tokenizer", [name for name in NAMES if name != "smollm2"])
@settings(max_examples=25)
@given(data=st.data())
def test_parts_decode_to_their_text(tokenizer: str, data: st.DataObject):
    numbers = sorted(codec(tokenizer).markers.values())
    parts = data.draw(st.lists(TEXT | st.sampled_from(numbers), max_size=6))
    assert codec(tokenizer).decode([encoded(tokenizer, parts)])[0] == written(tokenizer, parts)


@pytest.mark.parametrize(("name", "tokenizer"), REASONING)
@settings(max_examples=15)
@given(reasoning=TEXT, content=TEXT, ended=st.booleans())
def test_sampled_ids_are_among_those_that_the_text_is_read_as(
    name: str, tokenizer: str, reasoning: str, content: str, ended: bool
):
    assume(reasoning and not reasoning.startswith(THINK[0]))  # some servers leave the sampled one there
    own = bound(name, tokenizer)
    opening = own.format.opens_in_prompt[True]
    sampled = outer(name, tokenizer, opening, reasoning, content, ended)
    readings = own.format.readings(Said(reasoning, content, ended), opening)
    if isinstance(readings, Fault):  # the reasoning marker that is in the prompt already
        assert THINK[0] in reasoning + content
        return
    # the markers of a tool section are read as markers only
    assert own.ids(sampled) in [own.ids(reading.parts) for reading in readings] or "tool_call" in content


@pytest.mark.parametrize(("name", "tokenizer"), BOUND)
@settings(max_examples=15)
@given(data=st.data(), reasoning=st.booleans(), ended=st.booleans())
def test_every_reading_decodes_to_what_was_said(
    name: str, tokenizer: str, data: st.DataObject, reasoning: bool, ended: bool
):
    own = bound(name, tokenizer)
    opening: Opening = own.format.opens_in_prompt[True] if reasoning and BOUND[name, tokenizer] else "closed"
    thought = data.draw(mixed(tokenizer, 1)) if opening != "closed" else ""
    content = data.draw(mixed(tokenizer, 1))
    assume(thought or opening == "closed")
    readings = own.format.readings(Said(thought or None, content, ended), opening)
    if isinstance(readings, Fault):
        assert THINK[0] in thought + content or not (thought or content)
        return
    thought = thought.removeprefix(THINK[0]) if opening == "unsaid" else thought
    for reading in readings:
        text = own.codec.decode([own.ids(reading.parts)])[0]
        if ended:
            text = text.removesuffix(written(tokenizer, reading.parts[-1:]))
        assert thought in text
        assert content in text
        if not reading.doubt and opening == "closed":
            assert text == content
        if not reading.doubt and opening != "closed":
            head = THINK[0] if opening == "unsaid" else ""
            assert text == f"{head}{thought}{THINK[1]}{content}" or (not content and not ended)


@pytest.mark.parametrize(("name", "tokenizer"), REASONING)
@settings(max_examples=15)
@given(data=st.data(), ended=st.booleans())
def test_a_text_cut_at_its_first_close_marker_is_its_two_halves(
    name: str, tokenizer: str, data: st.DataObject, ended: bool
):
    own = bound(name, tokenizer)
    opening = own.format.opens_in_prompt[True]
    reasoning, content = data.draw(mixed(tokenizer)), data.draw(mixed(tokenizer, 1))
    assume(reasoning and content and not any(marker in reasoning for marker in THINK) and THINK[0] not in content)
    head = THINK[0] if opening == "unsaid" else ""
    inline = own.format.readings(Said(None, f"{head}{reasoning}{THINK[1]}{content}", ended), opening)
    apart = own.format.readings(Said(reasoning, content, ended), opening)
    assert not isinstance(inline, Fault)
    assert not isinstance(apart, Fault)
    assert inline[0] == apart[0]


@settings(max_examples=30)
@given(data=st.data(), ended=st.booleans())
def test_messages_of_harmony_come_back(data: st.DataObject, ended: bool):
    own = bound("gpt-oss", "gpt-oss")
    reasoning, content = data.draw(mixed("gpt-oss", 1)), data.draw(mixed("gpt-oss", 1))
    assume(reasoning and content)
    ids = own.only(reasoning, content, "unsaid", ended)
    reply = own.reply(ids, "unsaid")
    assert (reply.reasoning, reply.content, reply.calls) == (reasoning, content, ())
    assert own.fault("<|start|>assistant", ids, "stop" if ended else "length") == ""
