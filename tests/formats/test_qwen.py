"""Qwen3, Qwen3.5 and QwQ with their real tokenizers and templates."""

from __future__ import annotations

import pytest

from schemas.errors import TokenFormatError
from tasks.formats.format import Opening, ToolCall
from tasks.formats.registry import bind
from tests.formats.bound import Bound, bound, named
from tests.formats.templates import prompt
from tests.tokenizers import codec

OPEN, CLOSE, CALL, CALL_END, END = 151667, 151668, 151657, 151658, 151645
REASONING = [198, 11613, 5519, 1378, 374, 3040, 624]
CONTENT = [271, 785, 4226, 374, 220, 19, 13]
CALL_TEXT = '\n{"name": "ls", "arguments": {"path": "."}}\n'
CALL_IDS = [198, 4913, 606, 788, 330, 4730, 497, 330, 16370, 788, 5212, 2343, 788, 22760, 11248]


@pytest.fixture
def qwen3() -> Bound:
    return bound("qwen3", "qwen-3")


@pytest.fixture
def newer() -> Bound:
    return bound("qwen3.5", "qwen-3.5")


def test_qwen3_samples_the_open_marker_itself(qwen3: Bound):
    ids = qwen3.only("\nTwo plus two is four.\n", "\n\nThe answer is 4.", "unsaid")
    assert ids == [OPEN, *REASONING, CLOSE, *CONTENT, END]
    assert OPEN in qwen3.format.reply_ids


def test_qwen3_with_thinking_off_has_no_marker_but_the_end(qwen3: Bound):
    assert qwen3.only(None, "The answer is 4.", "closed") == [*CONTENT[1:], END]


def test_qwen3_without_reasoning_may_have_hidden_it(qwen3: Bound):
    first, hidden = qwen3.all(None, "The answer is 4.", "unsaid")
    assert first == ([*CONTENT[1:], END], "")
    assert hidden == ([OPEN, CLOSE, *CONTENT[1:], END], "reasoning_not_returned")


def test_unparsed_text_is_read_like_the_parsed(qwen3: Bound):
    whole = "<think>\nTwo plus two is four.\n</think>\n\nThe answer is 4."
    assert qwen3.all(None, whole, "unsaid")[0] == ([OPEN, *REASONING, CLOSE, *CONTENT, END], "")


def test_a_cut_adds_no_marker(qwen3: Bound):
    assert qwen3.only("\nTwo plus two is four.\n", "\n\nThe answer is 4.", "unsaid", ended=False) == [
        *(OPEN, *REASONING, CLOSE, *CONTENT)
    ]
    in_reasoning = qwen3.all("\nTwo plus two is four.\n", None, "unsaid", ended=False)
    assert in_reasoning[0] == ([OPEN, *REASONING], "")


def test_newer_prompts_hold_the_open_marker(newer: Bound):
    ids = newer.only("Two plus two is four.", "The answer is 4.", "open")
    assert ids == [11280, 5346, 1330, 369, 2943, 13, 248069, 760, 4087, 369, 220, 19, 13, 248046]
    assert 248068 not in newer.format.reply_ids


def test_calls_are_markers_around_plain_text(qwen3: Bound):
    text = f"\n\n<tool_call>{CALL_TEXT}</tool_call>\n<tool_call>{CALL_TEXT}</tool_call>"
    call = [CALL, *CALL_IDS, CALL_END]
    ids, doubt = qwen3.all("\nTwo plus two is four.\n", text, "unsaid")[0]
    assert (ids, doubt) == ([OPEN, *REASONING, CLOSE, 271, *call, 198, *call, END], "")


def test_calls_keep_their_arguments_as_written(qwen3: Bound):
    odd = '\n{"name": "ls", "arguments": { "b":[1,  2],"a":"\\u00fc"} }\n'
    parts = [OPEN, "R", CLOSE, "\n\nI look.\n", CALL, odd, CALL_END, "\n", CALL, CALL_TEXT, CALL_END, END]
    reply = qwen3.reply(parts, "unsaid")
    assert (reply.reasoning, reply.content) == ("R", "\n\nI look.")  # the line ends belong to the calls
    assert reply.calls == (ToolCall("ls", '{ "b":[1,  2],"a":"\\u00fc"}'), ToolCall("ls", '{"path": "."}'))


@pytest.mark.parametrize(
    "text", ["ls(.)", '{"name": 3, "arguments": {}}', '{"name": "ls", "arguments": {]}', "", '{"a": 1']
)
def test_a_call_that_cannot_be_read_has_no_name(qwen3: Bound, text: str):
    assert qwen3.reply([CALL, text, CALL_END, END], "closed").calls == (ToolCall("", text),)


def test_newer_calls_are_functions_with_parameters(newer: Bound):
    text = "\n<function=ls>\n<parameter=path>\n.\n</parameter>\n</function>\n"
    parts = ["R", 248069, "\n\n", 248058, text, 248059, 248046]
    assert newer.reply(parts, "open").calls == (ToolCall("ls", "<parameter=path>\n.\n</parameter>\n"),)
    assert newer.fault(prompt("qwen-3.5"), parts) == ""


def test_an_open_marker_that_alone_was_left_out_is_a_doubt(qwen3: Bound):
    # the close marker as text has as many ids as open and close marker together
    found = qwen3.all(None, "\nR one\n</think>\n\nAnswer.", "unsaid")
    sampled = next(ids for ids, _ in found if ids[0] == OPEN and CLOSE in ids[2:])
    assert sampled == [OPEN, 198, 49, 825, 198, CLOSE, 271, 16141, 13, END]
    assert [ids for ids, _ in found if len(ids) == len(sampled) and CLOSE not in ids]


def test_marker_text_is_left_to_the_count(qwen3: Bound):
    plain, marker = qwen3.all(None, "write </think> last", "closed")
    assert (plain[1], marker[1]) == ("", "marker_text_in_answer")
    assert CLOSE not in plain[0]
    assert CLOSE in marker[0]
    assert len(plain[0]) == len(marker[0]) + 1


def test_tool_markers_out_of_order_are_plain_text(qwen3: Bound):
    ids, _ = qwen3.all(None, "the tag </tool_call> ends a call", "closed")[0]
    assert CALL_END not in ids


@pytest.mark.parametrize(
    ("parts", "finish_reason", "reason"),
    [
        ([OPEN, "R", CLOSE, "C", END], "stop", ""),
        (["C", END], "stop", ""),
        ([OPEN, "R"], "length", ""),
        ([OPEN, "R", CLOSE, CALL, "{}"], "length", ""),
        ([OPEN, "R", CLOSE, CALL, "{}", CALL_END, CALL, "{}", CALL_END, END], "tool_calls", ""),
        ([], "stop", "empty_completion"),
        ([151936], "length", "id_out_of_range"),
        ([OPEN, "R", CLOSE, "C", END, "more", END], "stop", "end_id_inside"),
        ([OPEN, "R", CLOSE, "C"], "stop", "end_id_missing"),
        ([OPEN, "R", CLOSE, "C", END], "length", "end_id_after_cut"),
        ([OPEN, "R", OPEN, CLOSE, "C", END], "stop", "open_marker_in_answer"),
        ([OPEN, "R", END], "stop", "close_marker_missing"),
        ([OPEN, "R", CLOSE, "C", CLOSE, END], "stop", "close_marker_repeated"),
        (["R", CLOSE, "C", END], "stop", "close_marker_unasked"),
        ([OPEN, "R", CLOSE, CALL, "{}", CALL, "{}", CALL_END, END], "stop", "tool_markers_unbalanced"),
        ([OPEN, "R", CLOSE, CALL, "{}", END], "tool_calls", "tool_markers_unbalanced"),
        ([OPEN, "R", CLOSE, "C", 151644, END], "stop", "role_marker_in_answer"),
    ],
)
def test_structure_of_qwen3(qwen3: Bound, parts: list[str | int], finish_reason: str, reason: str):
    assert qwen3.fault(prompt("qwen-3"), parts, finish_reason) == reason


def test_thinking_off_must_not_close_what_the_prompt_closed(qwen3: Bound):
    off = prompt("qwen-3", enable_thinking=False)
    assert qwen3.fault(off, ["R", CLOSE, "C", END]) == "close_marker_unasked"
    assert qwen3.fault(off, ["C", END]) == ""


def test_an_opened_prompt_must_not_be_opened_again(newer: Bound):
    assert newer.fault(prompt("qwen-3.5"), [248068, "R", 248069, "C", 248046]) == "open_marker_in_answer"
    assert newer.refused("<think>R", "C", "open") == "open_marker_in_answer"


@pytest.mark.parametrize(
    ("name", "tokenizer", "model", "thinking", "opening"),
    [
        ("qwen3", "qwen-3", "qwen-3", True, "unsaid"),
        ("qwen3", "qwen-3", "qwen-3", False, "closed"),
        ("qwen3.5", "qwen-3.5", "qwen-3.5", True, "open"),
        ("qwen3.5", "qwen-3.5", "qwen-3.5", False, "closed"),
        ("qwen3.5", "qwen-3.5", "qwen-3.6", True, "open"),
        ("qwen3.5", "qwen-3.5", "qwen-3.6", False, "closed"),
        ("qwq", "qwq-32b", "qwq-32b", True, "open"),
        ("qwq", "qwq-32b", "qwq-32b", False, "open"),
    ],
)
def test_the_template_leaves_the_reasoning_as_the_format_says(
    name: str, tokenizer: str, model: str, thinking: bool, opening: Opening
):
    own = bound(name, tokenizer)
    assert own.format.opens_in_prompt[thinking] == opening
    assert own.opening(prompt(model, enable_thinking=thinking)) == opening
    assert named(tokenizer, model) == name


def test_a_tokenizer_of_another_family_is_refused_with_both_ids():
    with pytest.raises(TokenFormatError, match=r"248044.*151643"):
        bind("qwen3", codec("qwen-3.5"))
    with pytest.raises(TokenFormatError, match=r"<\|endoftext\|> is no control token"):
        bind("qwq", codec("deepseek-r1-distill-qwen-7b"))


def test_another_end_in_the_configuration_is_refused():
    with pytest.raises(TokenFormatError, match=r"151643.*151645"):
        bind("qwen3", codec("qwen-3"), [151643])
    assert bind("qwen3", codec("qwen-3"), [151645, 151643]).end_ids == (151645, 151643)
