"""DeepSeek-R1, its distills and V3.1 with their real tokenizers and templates."""

from __future__ import annotations

import pytest

from schemas.errors import TokenFormatError
from tasks.formats.format import Opening, ToolCall
from tasks.formats.registry import bind
from tests.formats.bound import Bound, bound, named
from tests.formats.templates import prompt
from tests.tokenizers import codec

OPEN, CLOSE, END = 128798, 128799, 1
SECTION, SECTION_END, CALL, CALL_END, SEPARATOR = 128806, 128807, 128808, 128809, 128814
REASONING = [14959, 5582, 1234, 344, 2689, 603]  # after the line end that the prompt has
CONTENT = [271, 671, 3287, 344, 223, 22, 16]
TEXT = ("Two plus two is four.\n", "\n\nThe answer is 4.")
FENCE = 'ls\n```json\n{"path": "."}\n```'
FENCE_IDS = [10975, 201, 9854, 14479, 201, 24313, 9860, 3362, 126637, 1778, 9854]
ARGUMENTS = [24313, 9860, 3362, 126637, 95]


@pytest.fixture
def r1() -> Bound:
    return bound("deepseek-r1", "deepseek-r1")


@pytest.fixture
def v31() -> Bound:
    return bound("deepseek-v3.1", "deepseek-v3.1")


def test_r1_closes_what_the_prompt_opened(r1: Bound):
    assert r1.only(*TEXT, "open") == [*REASONING, CLOSE, *CONTENT, END]
    assert OPEN not in r1.format.reply_ids


@pytest.mark.parametrize(
    ("tokenizer", "ids"),
    [
        (
            "deepseek-r1-distill-qwen-7b",
            [11613, 5519, 1378, 374, 3040, 624, 151649, 271, 785, 4226, 374, 220, 19, 13, 151643],
        ),
        (
            "deepseek-r1-distill-llama-8b",
            [11874, 5636, 1403, 374, 3116, 627, 128014, 271, 791, 4320, 374, 220, 19, 13, 128001],
        ),
    ],
)
def test_distills_have_ids_of_their_own(tokenizer: str, ids: list[int]):
    assert bound("deepseek-r1", tokenizer).only(*TEXT, "open") == ids


def test_0528_samples_the_open_marker_itself():
    ids = bound("deepseek-r1-0528", "deepseek-r1").only(*TEXT, "unsaid")
    assert ids == [OPEN, *REASONING, CLOSE, *CONTENT, END]
    distill = bound("deepseek-r1-0528", "deepseek-r1-0528-qwen3-8b").only(*TEXT, "unsaid")
    assert (distill[0], distill[-1]) == (151667, 151645)


def test_thinking_off_has_no_marker_but_the_end(v31: Bound):
    assert v31.only(None, "The answer is 4.", "closed") == [*CONTENT[1:], END]
    assert v31.only("The answer is 4.", None, "closed") == [*CONTENT[1:], END]
    assert v31.refused("R", "C", "closed") == "close_marker_unasked"


def test_a_cut_adds_no_marker(r1: Bound):
    assert r1.all(TEXT[0], None, "open", ended=False)[0] == (REASONING, "")
    assert r1.only(*TEXT, "open", ended=False) == [*REASONING, CLOSE, *CONTENT]


def test_calls_of_r1_are_fenced(r1: Bound):
    text = (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{FENCE}<｜tool▁call▁end｜>\n"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{FENCE}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    call = [CALL, 8701, SEPARATOR, *FENCE_IDS, CALL_END]
    ids = [*REASONING, CLOSE, SECTION, *call, 201, *call, SECTION_END, END]
    first, without_close = r1.all(TEXT[0], text, "open")[:2]
    assert first == (ids, "")
    assert without_close == ([number for number in ids if number != CLOSE], "missing_close_before_tools")
    assert r1.fault(prompt("deepseek-r1"), ids, "tool_calls") == ""
    assert r1.reply(ids, "open").calls == (ToolCall("ls", '{"path": "."}'),) * 2


def test_calls_of_v31_are_bare(v31: Bound):
    text = (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ls<｜tool▁sep｜>{"path": "."}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>ls<｜tool▁sep｜>{"path": "."}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    call = [CALL, 10975, SEPARATOR, *ARGUMENTS, CALL_END]
    ids = [SECTION, *call, *call, SECTION_END, END]
    assert v31.all(None, text, "closed")[0] == (ids, "")
    reply = v31.reply(["Let me look.", *ids], "closed")
    assert (reply.reasoning, reply.content) == ("", "Let me look.")
    assert reply.calls == (ToolCall("ls", '{"path": "."}'),) * 2


def test_calls_of_a_distill_are_plain_text():
    own = bound("deepseek-r1", "deepseek-r1-distill-qwen-7b")
    text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ls"
    ids = own.only("R", text, "open")
    assert own.codec.decode([ids])[0] == f"R</think>{text}<｜end▁of▁sentence｜>"
    assert max(ids) < 151650


def test_marker_text_is_left_to_the_count(r1: Bound):
    plain, marker = r1.all("R", "the tag </think> ends it", "open")
    assert (plain[0].count(CLOSE), plain[1]) == (1, "")
    assert (marker[0].count(CLOSE), marker[1]) == (2, "marker_text_in_answer")


@pytest.mark.parametrize(
    ("parts", "finish_reason", "reason"),
    [
        (["R", CLOSE, "C", END], "stop", ""),
        (["R"], "length", ""),
        (["R", CLOSE, SECTION, CALL, "ls", SEPARATOR], "length", ""),
        (["R", SECTION, CALL, "ls", SEPARATOR, "{}", CALL_END, SECTION_END, END], "tool_calls", ""),
        ([], "length", "empty_completion"),
        (["R", CLOSE, -1], "length", "id_out_of_range"),
        (["R", CLOSE, END, "C", END], "stop", "end_id_inside"),
        (["R", CLOSE, "C"], "stop", "end_id_missing"),
        (["R", CLOSE, "C", END], "length", "end_id_after_cut"),
        ([OPEN, "R", CLOSE, "C", END], "stop", "open_marker_in_answer"),
        (["R", END], "stop", "close_marker_missing"),
        (["R", CLOSE, "C", CLOSE, "C", END], "stop", "close_marker_repeated"),
        (["R", CLOSE, SECTION, CALL, "ls", CALL_END, SECTION_END, END], "stop", "tool_markers_unbalanced"),
        (["R", CLOSE, SECTION, SECTION_END, END], "stop", "tool_markers_unbalanced"),
        (["R", CLOSE, "C", 128804, END], "stop", "role_marker_in_answer"),
        (["R", CLOSE, "C", 128811, END], "stop", "role_marker_in_answer"),
    ],
)
def test_structure_of_r1(r1: Bound, parts: list[str | int], finish_reason: str, reason: str):
    assert r1.fault(prompt("deepseek-r1"), parts, finish_reason) == reason


def test_thinking_off_must_not_close_what_the_prompt_closed(v31: Bound):
    assert v31.fault(prompt("deepseek-v3.1", thinking=False), ["R", CLOSE, "C", END]) == "close_marker_unasked"
    assert v31.fault(prompt("deepseek-v3.1", thinking=True), ["R", CLOSE, "C", END]) == ""


def test_a_tools_output_leaves_the_reasoning_as_the_turn_before_did(v31: Bound):
    call = {"type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "a.txt"},
    ]
    text = prompt("deepseek-v3.1", messages, thinking=False)
    assert text.endswith("<｜tool▁output▁end｜>")
    assert v31.opening(text) == "closed"


@pytest.mark.parametrize(
    ("name", "tokenizer", "thinking", "opening"),
    [
        ("deepseek-r1", "deepseek-r1", True, "open"),
        ("deepseek-r1", "deepseek-r1", False, "open"),
        ("deepseek-r1", "deepseek-r1-distill-qwen-7b", True, "open"),
        ("deepseek-r1", "deepseek-r1-distill-llama-8b", True, "open"),
        ("deepseek-r1-0528", "deepseek-r1-0528-qwen3-8b", True, "unsaid"),
        ("deepseek-v3.1", "deepseek-v3.1", True, "open"),
        ("deepseek-v3.1", "deepseek-v3.1", False, "closed"),
    ],
)
def test_the_template_leaves_the_reasoning_as_the_format_says(
    name: str, tokenizer: str, thinking: bool, opening: Opening
):
    own = bound(name, tokenizer)
    assert own.format.opens_in_prompt[thinking] == opening
    assert own.opening(prompt(tokenizer, thinking=thinking)) == opening
    assert named(tokenizer) == name


def test_a_tokenizer_of_another_family_is_refused_with_both_ids():
    with pytest.raises(TokenFormatError, match="is no control token in the target's tokenizer; it is 0"):
        bind("deepseek-r1", codec("qwen-3"))
    with pytest.raises(TokenFormatError, match=r"has id 151646.*it is 0 "):
        bind("deepseek-v3.1", codec("deepseek-r1-distill-qwen-7b"))


def test_another_end_in_the_configuration_is_refused():
    with pytest.raises(TokenFormatError, match=r"\[151643\].* with 1 "):
        bind("deepseek-r1", codec("deepseek-r1"), [151643])
