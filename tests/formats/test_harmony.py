"""gpt-oss with its real tokenizer; its template is not in any wheel, so that the prompt's tail is written out."""

from __future__ import annotations

import pytest

from schemas.errors import TokenFormatError
from tasks.formats.format import ToolCall
from tasks.formats.registry import bind, recognise
from tests.formats.bound import Bound, bound
from tests.tokenizers import codec

RETURN, CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL = 200002, 200003, 200005, 200006, 200007, 200008, 200012
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
ANALYSIS = [CHANNEL, 35644, MESSAGE]
FINAL = [CHANNEL, 17196, MESSAGE]
NEXT = [END, START, 173781]
REASONING = [13866, 2932, 1920, 382, 4242, 13]
CONTENT = [976, 6052, 382, 220, 19, 13]
TEXT = ("Two plus two is four.", "The answer is 4.")
ARGUMENTS = '{"path": "."}'
TO_LS = [CHANNEL, 12606, 815, 316, 28, 44580, 1000, 82, 220, CONSTRAIN, 4108, MESSAGE, 10848, 4189, 1243, 50107, 92]


@pytest.fixture
def own() -> Bound:
    return bound("gpt-oss", "gpt-oss")


def test_reasoning_and_content_are_two_messages(own: Bound):
    ids = [*ANALYSIS, *REASONING, *NEXT, *FINAL, *CONTENT, RETURN]
    assert own.only(*TEXT, "unsaid") == ids
    assert own.fault(PROMPT, ids) == ""
    assert own.reply(ids, "unsaid") == own.reply(ids[:-1], "unsaid")
    assert (own.reply(ids, "unsaid").reasoning, own.reply(ids, "unsaid").content) == TEXT


def test_without_reasoning_there_is_one_message(own: Bound):
    assert own.only(None, TEXT[1], "unsaid") == [*FINAL, *CONTENT, RETURN]
    assert own.only("", TEXT[1], "unsaid", ended=False) == [*FINAL, *CONTENT]


def test_a_cut_adds_no_marker(own: Bound):
    assert own.only(TEXT[0], None, "unsaid", ended=False) == [*ANALYSIS, *REASONING]
    assert own.only(*TEXT, "unsaid", ended=False) == [*ANALYSIS, *REASONING, *NEXT, *FINAL, *CONTENT]
    assert own.refused(None, None, "unsaid", ended=False) == "empty_completion"


def test_reasoning_alone_is_left_to_the_count(own: Bound):
    with_final, without = own.all(TEXT[0], None, "unsaid")
    assert with_final[0] == [*ANALYSIS, *REASONING, *NEXT, *FINAL, RETURN]
    assert without[0] == [*ANALYSIS, *REASONING, RETURN]


def test_text_with_its_markers_is_read_as_it_was_sampled(own: Bound):
    ids = [*ANALYSIS, *REASONING, *NEXT, *FINAL, *CONTENT, RETURN]
    text = own.codec.decode([ids])[0]
    for shown in (text, text.removesuffix("<|return|>")):
        first, plain = own.all(None, shown, "unsaid")
        assert first == (ids, "")
        assert plain[1] == "marker_text_in_answer"
        assert set(plain[0]) & {START, END} == set()


def test_a_call_ends_the_turn_and_names_its_recipient(own: Bound):
    ids = [*ANALYSIS, *REASONING, *NEXT, *TO_LS, CALL]
    text = own.codec.decode([ids])[0].removesuffix("<|call|>")
    assert own.all(None, text, "unsaid")[0] == (ids, "")
    assert own.fault(PROMPT, ids, "tool_calls") == ""
    reply = own.reply(ids, "unsaid")
    assert (reply.reasoning, reply.content, reply.calls) == (TEXT[0], "", (ToolCall("ls", ARGUMENTS),))


def test_a_recipient_may_stand_before_the_channel(own: Bound):
    text = f" to=functions.ls<|channel|>commentary json<|message|>{ARGUMENTS}"
    ids = own.all(None, text, "unsaid")[0][0]
    assert (ids[-1], own.fault(PROMPT, ids, "tool_calls")) == (CALL, "")
    assert own.reply(ids, "unsaid").calls == (ToolCall("ls", ARGUMENTS),)


def test_calls_one_after_another_and_a_preamble(own: Bound):
    preamble = [CHANNEL, "commentary", MESSAGE, "I look.", END, START, "assistant"]
    browse = [START, "assistant to=browser.open", CHANNEL, "analysis", MESSAGE, "{}", CALL]
    parts = [*preamble, *TO_LS, END, *browse]
    reply = own.reply(parts, "unsaid")
    assert reply.content == "I look."
    assert reply.calls == (ToolCall("ls", ARGUMENTS), ToolCall("browser.open", "{}"))
    assert own.fault(PROMPT, parts, "tool_calls") == ""


def test_marker_text_inside_of_fields_is_plain(own: Bound):
    ids = own.only("the tag <|end|>", "and <|return|> too", "unsaid")
    assert (ids.count(END), ids.count(RETURN)) == (1, 1)


@pytest.mark.parametrize(
    ("parts", "finish_reason", "reason"),
    [
        ([*FINAL, "C", RETURN], "stop", ""),
        ([*FINAL, "C", 199999], "stop", ""),
        ([CHANNEL, "analysis"], "length", ""),
        ([*ANALYSIS, "R", END], "length", ""),
        ([*ANALYSIS, "R", END, START], "length", ""),
        ([*ANALYSIS, "R", *NEXT, CHANNEL, "commentary to=functions.f ", CONSTRAIN], "length", ""),
        ([" to=functions.f"], "length", ""),
        ([], "stop", "empty_completion"),
        ([200019], "length", "id_out_of_range"),
        ([-3, *FINAL, RETURN], "stop", "id_out_of_range"),
        ([*FINAL, "C", RETURN, "more", RETURN], "stop", "end_id_inside"),
        ([*FINAL, "C"], "stop", "end_id_missing"),
        (["C"], "stop", "end_id_missing"),
        ([*FINAL, "C", RETURN], "length", "end_id_after_cut"),
        ([*ANALYSIS, "R", CHANNEL, "final", MESSAGE, "C", RETURN], "stop", "open_marker_in_answer"),
        (["C", RETURN], "stop", "close_marker_missing"),
        ([CHANNEL, "final", RETURN], "stop", "close_marker_missing"),
        ([*FINAL, MESSAGE, "C", RETURN], "stop", "close_marker_repeated"),
        ([*ANALYSIS, "R", START, "assistant", *FINAL, "C", RETURN], "stop", "role_marker_in_answer"),
        ([*ANALYSIS, "R", END, RETURN], "stop", "role_marker_in_answer"),
        ([*ANALYSIS, "R", END, "text"], "length", "role_marker_in_answer"),
        ([*FINAL, 199998, RETURN], "stop", "role_marker_in_answer"),
        ([*FINAL, "C", CONSTRAIN, "json", CALL], "stop", "tool_markers_unbalanced"),
        ([CHANNEL, "commentary", CONSTRAIN, CALL], "stop", "tool_markers_unbalanced"),
    ],
)
def test_structure(own: Bound, parts: list[str | int], finish_reason: str, reason: str):
    assert own.fault(PROMPT, parts, finish_reason) == reason


def test_the_prompt_says_nothing_unless_it_begins_a_message(own: Bound):
    assert own.format.opens_in_prompt == {True: "unsaid", False: "unsaid"}
    assert own.opening(PROMPT) == "unsaid"
    assert own.opening(f"{PROMPT}<|channel|>final<|message|>") == "open"
    assert own.refused(*TEXT, "open") == "open_marker_in_answer"


def test_it_is_recognised_by_its_ids_and_a_channel_in_the_template(own: Bound):
    assert recognise(own.codec, "<|start|>assistant<|channel|>final<|message|>") == "gpt-oss"
    assert recognise(own.codec, "<|im_start|>") == "plain"
    assert recognise(codec("qwen-3"), "<|channel|>") == "plain"


def test_a_tokenizer_of_another_family_is_refused_with_both_ids():
    with pytest.raises(TokenFormatError, match="is no control token in the target's tokenizer; it is 199998"):
        bind("gpt-oss", codec("qwen-3"))


def test_another_end_in_the_configuration_is_refused():
    with pytest.raises(TokenFormatError, match=r"\[199999\].* with 200002 "):
        bind("gpt-oss", codec("gpt-oss"), [199999])
