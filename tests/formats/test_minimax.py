"""MiniMax M2 with its real tokenizer and template."""

from __future__ import annotations

import pytest

from schemas.errors import TokenFormatError
from tasks.formats.format import ToolCall
from tasks.formats.registry import bind, recognise
from tests.formats.bound import Bound, bound, named
from tests.formats.templates import prompt, template
from tests.tokenizers import codec

END, OPEN, CLOSE, CALLS, CALLS_END = 200020, 200050, 200051, 200052, 200053
REASONING = [18364, 1959, 1451, 355, 3653, 320]
CONTENT = [367, 758, 4941, 355, 32, 52, 46]
TEXT = ("Two plus two is four.\n", "\n\nThe answer is 4.")
PARAMETER = '\n<parameter name="path">.</parameter>\n'
INVOKE = f'\n<invoke name="ls">{PARAMETER}</invoke>\n'
INVOKE_IDS = [
    *(10, 60, 88638, 1925, 1139, 8079, 6143, 60, 24662, 1925, 1139, 6812, 3361, 10943, 24662, 1100, 1579, 88638, 1100),
]


@pytest.fixture
def own() -> Bound:
    return bound("minimax-m2", "minimax")


def test_an_answer_closes_what_the_prompt_opened(own: Bound):
    assert own.only(*TEXT, "open") == [*REASONING, CLOSE, *CONTENT, END]
    assert own.format.reply_ids == (END, CLOSE, CALLS, CALLS_END)


def test_a_cut_adds_no_marker(own: Bound):
    assert own.all(TEXT[0], None, "open", ended=False)[0] == (REASONING, "")
    assert own.only(*TEXT, "open", ended=False) == [*REASONING, CLOSE, *CONTENT]


def test_a_section_is_markers_around_plain_text(own: Bound):
    ids, doubt = own.all(TEXT[0], f"\n\n<minimax:tool_call>{INVOKE}</minimax:tool_call>", "open")[0]
    assert (ids, doubt) == ([*REASONING, CLOSE, 367, CALLS, *INVOKE_IDS, CALLS_END, END], "")


def test_parallel_calls_share_a_section(own: Bound):
    second = '<invoke name="cat"><parameter name="a">x < y\n</parameter></invoke>'
    reply = own.reply(["R", CLOSE, "C\n", CALLS, INVOKE + second + "\n", CALLS_END, END], "open")
    assert (reply.reasoning, reply.content) == ("R", "C")
    assert reply.calls == (ToolCall("ls", PARAMETER), ToolCall("cat", '<parameter name="a">x < y\n</parameter>'))


@pytest.mark.parametrize("text", ["ls", '<invoke name="ls">', f"{INVOKE} and more"])
def test_a_section_that_cannot_be_read_is_one_call_without_a_name(own: Bound, text: str):
    assert own.reply(["R", CLOSE, CALLS, text, CALLS_END, END], "open").calls == (ToolCall("", text),)


def test_marker_text_is_left_to_the_count(own: Bound):
    plain, marker = own.all("R", "the tag </think> ends it", "open")
    assert (plain[0].count(CLOSE), plain[1]) == (1, "")
    assert (marker[0].count(CLOSE), marker[1]) == (2, "marker_text_in_answer")


@pytest.mark.parametrize(
    ("parts", "finish_reason", "reason"),
    [
        (["R", CLOSE, "C", END], "stop", ""),
        (["R"], "length", ""),
        (["R", CLOSE, CALLS, INVOKE], "length", ""),
        (["R", CLOSE, CALLS, INVOKE, CALLS_END, END], "tool_calls", ""),
        ([], "stop", "empty_completion"),
        ([200054], "length", "id_out_of_range"),
        (["R", CLOSE, "C", END, "\n", END], "stop", "end_id_inside"),
        (["R", CLOSE, "C"], "stop", "end_id_missing"),
        (["R", CLOSE, "C", END], "length", "end_id_after_cut"),
        ([OPEN, "R", CLOSE, "C", END], "stop", "open_marker_in_answer"),
        (["R", END], "stop", "close_marker_missing"),
        (["R", CLOSE, "C", CLOSE, END], "stop", "close_marker_repeated"),
        (["R", CLOSE, CALLS_END, CALLS, END], "stop", "tool_markers_unbalanced"),
        (["R", CLOSE, "C", 200019, END], "stop", "role_marker_in_answer"),
    ],
)
def test_structure(own: Bound, parts: list[str | int], finish_reason: str, reason: str):
    assert own.fault(prompt("minimax"), parts, finish_reason) == reason


@pytest.mark.parametrize("thinking", [True, False])
def test_the_template_opens_the_reasoning_whatever_is_asked(own: Bound, thinking: bool):
    assert own.format.opens_in_prompt[thinking] == "open"
    assert own.opening(prompt("minimax", enable_thinking=thinking, thinking=thinking)) == "open"
    assert named("minimax") == "minimax-m2"


def test_m3_is_another_format():
    assert recognise(codec("minimax"), template("minimax-m3")) == "plain"


def test_a_tokenizer_of_another_family_is_refused_with_both_ids():
    with pytest.raises(TokenFormatError, match="is no control token in the target's tokenizer; it is 200000"):
        bind("minimax-m2", codec("qwen-3"))


def test_another_end_in_the_configuration_is_refused():
    with pytest.raises(TokenFormatError, match=r"\[200019\].* with 200020 "):
        bind("minimax-m2", codec("minimax"), [200019])
