"""GLM-4.5 and GLM-4.7 with their real tokenizers and templates."""

from __future__ import annotations

import pytest

from schemas.errors import TokenFormatError
from tasks.formats.format import Opening, ToolCall
from tasks.formats.registry import bind
from tests.formats.bound import Bound, bound, named
from tests.formats.templates import prompt
from tests.tokenizers import codec

REASONING = [11608, 5519, 1378, 374, 3040, 13]
CONTENT = [785, 4226, 374, 220, 19, 13]
TEXT = ("Two plus two is four.", "The answer is 4.")
USER, OBSERVATION, OPEN, CLOSE, CALL, CALL_END = 154827, 154829, 154841, 154842, 154843, 154844
KEY, KEY_END, VALUE, VALUE_END = 154847, 154848, 154849, 154850
ONE_CALL = [CALL, 4730, KEY, 2343, KEY_END, VALUE, 13, VALUE_END, CALL_END]
CALL_TEXT = "<tool_call>ls<arg_key>path</arg_key><arg_value>.</arg_value></tool_call>"
ARGUMENTS = "<arg_key>path</arg_key><arg_value>.</arg_value>"


@pytest.fixture
def glm45() -> Bound:
    return bound("glm-4.5", "glm-4.5v")


@pytest.fixture
def glm47() -> Bound:
    return bound("glm-4.7", "glm-4.7-flash")


def test_the_turn_ends_with_the_marker_of_the_next_speaker(glm47: Bound):
    assert glm47.only(*TEXT, "open") == [*REASONING, CLOSE, *CONTENT, USER]
    assert glm47.only(None, TEXT[1], "closed") == [*CONTENT, USER]
    assert glm47.format.end_ids == (USER, OBSERVATION, 154820)


def test_a_turn_with_calls_ends_with_the_marker_of_their_results(glm47: Bound):
    ids, doubt = glm47.all(TEXT[0], f"{CALL_TEXT}{CALL_TEXT}", "open")[0]
    assert (ids, doubt) == ([*REASONING, CLOSE, *ONE_CALL, *ONE_CALL, OBSERVATION], "")
    assert glm47.reply(ids, "open").calls == (ToolCall("ls", ARGUMENTS),) * 2


def test_45_opens_the_reasoning_itself_maybe_on_a_new_line(glm45: Bound):
    same_line, new_line = glm45.all(TEXT[0], "\nThe answer is 4.", "unsaid")
    ids = [151350, *REASONING, 151351, 198, *CONTENT, 151336]
    assert same_line == (ids, "")
    assert new_line == ([198, *ids], "trimmed_whitespace")
    for way in (same_line, new_line):
        reply = glm45.reply(way[0], "unsaid")
        assert (reply.reasoning, reply.content) == (TEXT[0], "\nThe answer is 4.")


def test_45_without_a_parser_is_read_as_it_was_sampled(glm45: Bound):
    ids, doubt = glm45.all(None, "\n<think>Two plus two is four.</think>\nThe answer is 4.", "unsaid")[0]
    assert (ids, doubt) == ([198, 151350, *REASONING, 151351, 198, *CONTENT, 151336], "")


def test_45_without_its_open_marker_is_read_on_either_side_of_the_line_end(glm45: Bound):
    found = [ids for ids, _ in glm45.all(None, "\nTwo plus two is four.</think>\nThe answer is 4.", "unsaid")]
    sampled, _ = glm45.all(None, "\n<think>Two plus two is four.</think>\nThe answer is 4.", "unsaid")[0]
    assert sampled in found
    assert [ids for ids in found if len(ids) == len(sampled) and ids != sampled]


def test_calls_of_45_have_line_ends_between_markers(glm45: Bound):
    text = "<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>.</arg_value>\n</tool_call>"
    ids = [151352, 4730, 198, 151356, 2343, 151357, 198, 151358, 13, 151359, 198, 151353, 151338]
    assert glm45.all(None, text, "closed")[0] == (ids, "")
    arguments = "<arg_key>path</arg_key>\n<arg_value>.</arg_value>\n"
    assert glm45.reply(ids, "closed").calls == (ToolCall("ls", arguments),)


def test_a_call_without_arguments_is_one(glm47: Bound):
    parts = ["R", CLOSE, CALL, "ls", CALL_END, OBSERVATION]
    assert glm47.fault(prompt("glm-4.7-flash"), parts, "tool_calls") == ""
    assert glm47.reply(parts, "open").calls == (ToolCall("ls", ""),)


def test_a_cut_adds_no_marker(glm47: Bound):
    assert glm47.all(TEXT[0], None, "open", ended=False)[0] == (REASONING, "")
    assert glm47.only(*TEXT, "open", ended=False) == [*REASONING, CLOSE, *CONTENT]
    torn = glm47.all(None, "<tool_call>ls<arg_key>path", "closed", ended=False)[0][0]
    assert torn == [CALL, 4730, KEY, 2343]


def test_marker_text_is_left_to_the_count(glm47: Bound):
    plain, marker = glm47.all(None, "an </arg_key> alone", "closed")
    assert (KEY_END in plain[0], plain[1]) == (False, "")
    assert (KEY_END in marker[0], marker[1]) == (True, "marker_text_in_answer")


@pytest.mark.parametrize(
    ("parts", "finish_reason", "reason"),
    [
        (["R", CLOSE, "C", USER], "stop", ""),
        (["R", CLOSE, "C", 154820], "stop", ""),
        (["R", CLOSE, *ONE_CALL, OBSERVATION], "tool_calls", ""),
        (["R", CLOSE, CALL, "ls", KEY, "path"], "length", ""),
        ([], "stop", "empty_completion"),
        ([154856], "length", "id_out_of_range"),
        (["R", CLOSE, "C", USER, "Hi", USER], "stop", "end_id_inside"),
        (["R", CLOSE, "C"], "stop", "end_id_missing"),
        (["R", CLOSE, "C", USER], "length", "end_id_after_cut"),
        ([OPEN, "R", CLOSE, "C", USER], "stop", "open_marker_in_answer"),
        (["R", USER], "stop", "close_marker_missing"),
        (["R", CLOSE, CLOSE, "C", USER], "stop", "close_marker_repeated"),
        (["R", CLOSE, CALL, "ls", VALUE, ".", VALUE_END, CALL_END, USER], "stop", "tool_markers_unbalanced"),
        (["R", CLOSE, CALL, "ls", OBSERVATION], "stop", "tool_markers_unbalanced"),
        (["R", CLOSE, "C", 154828, USER], "stop", "role_marker_in_answer"),
    ],
)
def test_structure_of_47(glm47: Bound, parts: list[str | int], finish_reason: str, reason: str):
    assert glm47.fault(prompt("glm-4.7-flash"), parts, finish_reason) == reason


def test_thinking_off_must_not_close_what_the_prompt_closed(glm47: Bound):
    off = prompt("glm-4.7-flash", enable_thinking=False)
    assert glm47.fault(off, ["R", CLOSE, "C", USER]) == "close_marker_unasked"


@pytest.mark.parametrize(
    ("name", "tokenizer", "model", "thinking", "opening"),
    [
        ("glm-4.5", "glm-4.5v", "glm-4.5v", True, "unsaid"),
        ("glm-4.5", "glm-4.5v", "glm-4.5v", False, "closed"),
        ("glm-4.5", "glm-4.5v", "glm-4.6v", True, "unsaid"),
        ("glm-4.7", "glm-4.7-flash", "glm-4.7-flash", True, "open"),
        ("glm-4.7", "glm-4.7-flash", "glm-4.7-flash", False, "closed"),
        ("glm-4.7", "glm-4.7-flash", "glm-5", False, "closed"),
        ("glm-4.7", "glm-4.7-flash", "glm-5.2", True, "open"),
        ("glm-4.7", "glm-4.5v", "glm-4.7-flash", True, "open"),
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
    with pytest.raises(TokenFormatError, match=r"154820.*151329"):
        bind("glm-4.5", codec("glm-4.7-flash"))
    with pytest.raises(TokenFormatError, match=r"151643.*151329"):
        bind("glm-4.7", codec("qwen-3"))


def test_another_end_in_the_configuration_is_refused():
    with pytest.raises(TokenFormatError, match=r"\[154820\].* with 154827 "):
        bind("glm-4.7", codec("glm-4.7-flash"), [154820])
