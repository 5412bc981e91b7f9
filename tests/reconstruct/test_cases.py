"""Answers that went wrong for others: each is accepted with the ids that were sampled, or refused by name."""

from typing import Any

import pytest

from schemas.sections import CountingRule, ReconstructionSpec
from tests.reconstruct.given import CLOSE, END, OPEN, PROMPTS, PROVIDER, ids, kimi, reason, said, verdict, verdicts
from tests.rows import request

SECTION, SECTION_END, CALL, ARGUMENTS, CALL_END = 163595, 163596, 163597, 163598, 163599
LS = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0<|tool_call_argument_begin|>"
    '{"path": "."}<|tool_call_end|><|tool_calls_section_end|>'
)
CAT = LS.replace("ls:0", "cat:0").replace('{"path": "."}', "{}")


def test_reasoning_and_content_are_joined_by_the_close_marker_alone():
    row = verdict(said("Two plus two is four.", "The answer is 4.", 14))
    assert ids(row) == [17285, 9620, 2069, 387, 4771, 13, CLOSE, 1008, 7574, 387, 220, 19, 13, END]
    assert (row.billed, row.delta, row.delta_class, row.finish) == (14, 0, "exact", "stop")
    assert row.answer_text == "Two plus two is four.</think>The answer is 4.<|im_end|>"


@pytest.mark.parametrize("billed", [*range(8, 14), *range(15, 20)])
def test_a_count_that_is_off_is_never_accepted(billed: int):
    row = verdict(said("Two plus two is four.", "The answer is 4.", billed))
    assert reason(row) == row.delta_class
    assert row.delta == 14 - billed


def test_white_space_that_a_server_trimmed_shows_in_the_count():
    # sampled: "x = 1\n</think>\n\nDone"
    row = verdict(said("x = 1", "Done", 9))
    assert (reason(row), row.billed, row.delta) == ("trimmed_whitespace", 9, -2)
    assert ids(verdict(said("x = 1\n", "\n\nDone", 9)))[-4:] == [
        CLOSE,
        *ids(verdict(said("x = 1\n", "\n\nDone", 9)))[-3:],
    ]


def test_spaces_that_a_slow_tokenizer_put_round_the_marker_show_in_the_count():
    # sampled: "Done.</think>The answer is 4."
    row = verdict(said("Done. ", " The answer is 4.", 10))
    assert (reason(row), row.delta) == ("padded_markers", 1)


def test_padding_is_not_taken_for_an_end_id_that_is_not_billed():
    padded = [said("Done. ", " The answer is 4.", 10, number=number) for number in range(9)]
    assert {reason(row) for row in verdicts(padded)} == {"padded_markers"}
    inline = [said(None, "Done. </think> The answer is 4.", 10, number=number) for number in range(9)]
    assert {reason(row) for row in verdicts(inline)} == {"padded_markers"}


def test_tool_markers_in_text_become_single_ids():
    text, name, arguments = kimi().codec.encode(["I should list files.", "functions.ls:0", '{"path": "."}'])
    wanted = [*text, CLOSE, SECTION, CALL, *name, ARGUMENTS, *arguments, CALL_END, SECTION_END, END]
    assert ids(verdict(said("I should list files.", LS, len(wanted)))) == wanted


def test_without_a_count_a_section_after_the_reasoning_is_read_with_its_close_marker_and_unverified():
    text, name, arguments = kimi().codec.encode(["I should list files.", "functions.ls:0", '{"path": "."}'])
    row = verdict(said("I should list files.", LS))
    assert ids(row) == [*text, CLOSE, SECTION, CALL, *name, ARGUMENTS, *arguments, CALL_END, SECTION_END, END]
    assert row.delta_class == "unverified"


def test_an_answer_that_may_stand_joined_under_reasoning_is_refused_though_its_count_fits():
    joined = "Two plus two is four.The answer is 4."
    count = len(kimi().codec.encode([joined])[0]) + 2  # the close marker and the end
    assert reason(verdict(said(joined, None, count))) == "answer_not_split"
    assert reason(verdict(said(joined, "", count))) == "answer_not_split"


@pytest.mark.parametrize(("billed", "closed"), [(16, True), (15, False)])
def test_the_count_decides_whether_a_tool_section_ended_the_reasoning(billed: int, closed: bool):
    row = verdict(said("I need the file", CAT, billed))
    assert len(ids(row)) == billed
    assert (CLOSE in ids(row)) == closed


@pytest.mark.parametrize("billed", [14, 17])
def test_with_neither_reading_of_the_section_the_answer_goes(billed: int):
    assert verdict(said("I need the file", CAT, billed)).fault is not None


def test_calls_that_the_server_parsed_cannot_be_rebuilt():
    calls = '[{"function":{"arguments":"{\\"path\\": \\".\\"}","name":"ls"},"id":"functions.ls:0","type":"function"}]'
    row = verdict(said("call it", None, 30, tool_calls=calls, finish_reason="tool_calls"))
    assert reason(row) == row.delta_class == "parsed_tool_calls"


def test_calls_that_the_server_parsed_are_taken_with_returned_ids():
    output = ids(verdict(said("I need the file", CAT, 16)))
    row = verdict(said("I need the file", None, 16, tool_calls="[{}]", finish_reason="tool_calls", output_ids=output))
    assert ids(row) == output
    assert row.answer_text is None


def test_an_answer_cut_in_its_reasoning_gets_no_marker():
    row = verdict(said("Let me think about", None, 4, finish_reason="length"))
    assert len(ids(row)) == 4
    assert not {CLOSE, END} & set(ids(row))
    assert row.finish == "length"


def test_an_answer_cut_in_its_content_gets_no_end():
    found = ids(verdict(said("ok.", "The first step is", 7, finish_reason="length")))
    assert len(found) == 7
    assert (found.count(CLOSE), found.count(END)) == (1, 0)


def test_text_under_reasoning_with_thinking_off_is_content_or_refused():
    row = verdict(said("Hello! How can I help you today?", None, 10, thinking=False))
    if row.fault is None:
        assert CLOSE not in ids(row)
    else:
        assert reason(row) in ("close_marker_unasked", "reasoning_unasked", "unexplained")


@pytest.mark.parametrize(("billed", "expected"), [(14, None), (13, "close_marker_repeated")])
def test_a_second_close_marker_is_text_or_refused_as_the_count_says(billed: int, expected: str | None):
    row = verdict(said(None, "</think>2+2 is 4.\n</think>\n\nFour.", billed))
    if expected:
        assert reason(row) == expected
    else:
        assert ids(row).count(CLOSE) == 1


def test_an_open_marker_in_an_answer_is_refused():
    row = verdict(said(None, None, 5, output_ids=[OPEN, 76, CLOSE, 77, END]))
    assert reason(row) == "open_marker_in_answer"
    assert verdict(said("<think>hmm", "ok", 5)).fault is not None


def test_returned_ids_are_taken_whatever_encoding_the_text_would_give():
    row = verdict(said(None, None, 5, output_ids=[265, 75, 773, CLOSE, END], max_tokens=64))
    assert ids(row) == [265, 75, 773, CLOSE, END]  # "hello" is one id, 22931
    assert row.delta_class == "exact"


def test_an_end_id_that_was_returned_is_not_appended_again():
    row = verdict(said(None, "Hi there", 3, output_ids=[18699, 1459, END], thinking=False))
    assert ids(row) == [18699, 1459, END]


def test_a_wrong_end_id_is_seen():
    assert reason(verdict(said(None, None, 2, output_ids=[687, 163533], thinking=False))) == "end_id_missing"


def test_ids_that_the_server_lost_are_seen():
    row = verdict(said(None, None, 9, output_ids=[1, 2, 3], finish_reason="tool_calls"))
    assert (reason(row), row.fault and row.fault.detail) == (
        "billed_count_differs",
        "3 completion ids, 9 were billed",
    )


@pytest.mark.parametrize("text", ["\ufffd", "caf\ufffd", "a \ufffd b"])
def test_a_replacement_character_in_the_answer_alone_is_refused(text: str):
    assert reason(verdict(said("R", text, 4))) == "replacement_character"


def test_a_replacement_character_that_the_request_has_may_be_repeated():
    row = verdict(said("R", "\ufffd", 4, request=request("What is \ufffd?")))
    assert ids(row)[2:] == [9618, END]


def test_emoji_joined_by_zero_width_joiners_pass():
    family = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e8\U0001f1ed"
    encoded = kimi().codec.encode([family])[0]
    row = verdict(said("R", family, len(encoded) + 3))
    assert ids(row)[2:-1] == encoded


def test_combining_marks_and_line_ends_are_kept_as_they_came():
    text = "cafe\u0301\r\n\tx\0"
    row = verdict(said("R\r\n", text, len(kimi().codec.encode([text])[0]) + len(kimi().codec.encode(["R\r\n"])[0]) + 2))
    assert row.answer_text == f"R\r\n</think>{text}<|im_end|>"


def test_ids_above_the_vocabulary_are_seen():
    output = [163840, 163845, END]
    assert reason(verdict(said(None, None, 3, output_ids=output, thinking=False))) == "id_out_of_range"


def test_reasoning_that_was_billed_and_not_sent_is_named():
    assert reason(verdict(said(None, "A", 400))) == "reasoning_not_returned"
    assert reason(verdict(said(None, "A", 400, reasoning_tokens=390))) == "reasoning_not_returned"


def test_a_close_marker_that_the_text_does_not_show_is_put_nowhere():
    # sampled: "Two plus two is four.</think> The answer is 4.", sent as one text: closed at its start it is as long
    joined = said(None, "Two plus two is four. The answer is 4.", 14)
    assert reason(verdict(joined)) == "reasoning_not_returned"
    assert ids(verdict(joined | {"reasoning": ""}))[0] == CLOSE  # here the server says that there was none
    assert ids(verdict(joined | {"reasoning_tokens": 0}))[0] == CLOSE


def test_reasoning_beside_the_count_that_was_not_sent_is_named_though_the_count_fits():
    row = verdict(said(None, "A", 2, reasoning_tokens=390, thinking=False))
    assert reason(row) == "reasoning_not_returned"


def test_reasoning_inside_the_count_is_not_added():
    found = verdict(said("Two plus two is four.", "The answer is 4.", 14, reasoning_tokens=6))
    assert found.billed == 14


def test_reasoning_beside_the_count_is_added_where_the_provider_counts_so():
    row = said("Two plus two is four.", "The answer is 4.", 8, reasoning_tokens=6)
    assert verdict(row).fault is not None
    assert len(ids(verdict(row, rule=CountingRule(reasoning_inside=False)))) == 14


def test_an_answer_without_usage_is_unverified():
    row = verdict(said("R", "A"))
    assert (row.delta_class, row.billed, row.delta) == ("unverified", None, None)
    assert ids(row)[1] == CLOSE
    strict = kimi(ReconstructionSpec(unverified="quarantine"))
    assert reason(verdict(said("R", "A"), strict)) == "unverified"


def test_markers_inline_are_split_at_the_first_close():
    row = verdict(said(None, "R</think>A", 4))
    assert ids(row) == [*kimi().codec.encode(["R"])[0], CLOSE, *kimi().codec.encode(["A"])[0], END]


@pytest.mark.parametrize("finish", [None, "content_filter", "error"])
def test_an_end_that_is_not_known_is_refused(finish: str | None):
    expected = "finish_reason_missing" if finish is None else "unknown_finish_reason"
    assert reason(verdict(said("R", "A", 4, finish_reason=finish))) == expected


def test_ids_show_an_end_that_was_not_told():
    row = verdict(said(None, None, 3, output_ids=[18699, 1459, END], thinking=False, finish_reason=None))
    assert row.finish == "stop"


def test_ids_without_an_end_that_fill_the_limit_were_cut():
    row = verdict(said(None, None, 2, output_ids=[18699, 1459], thinking=False, max_tokens=2))
    assert (row.finish, ids(row)) == ("length", [18699, 1459])
    below = verdict(said(None, None, 2, output_ids=[18699, 1459], thinking=False, max_tokens=3))
    assert reason(below) == "end_id_missing"


@pytest.mark.parametrize(
    ("limit", "rule", "finish"),
    [
        (7, CountingRule(), "length"),
        (8, CountingRule(), None),  # seven were billed of eight: it was not the limit
        (7, CountingRule(end_counted=False), "length"),
        (8, CountingRule(end_counted=False), "stop"),
    ],
)
def test_a_text_that_is_said_to_have_ended_at_its_limit_was_cut_if_its_count_says_so(
    limit: int, rule: CountingRule, finish: str | None
):
    row = verdict(said("ok.", "The first step is", 7, max_tokens=limit, finish_reason="tool_calls"), rule=rule)
    if finish is None:
        assert row.fault is not None
        return
    assert (row.finish, ids(row).count(END)) == (("length", 0) if finish == "length" else ("tool_calls", 1))


def test_a_text_that_ended_with_its_last_permitted_id_has_its_end():
    row = verdict(said("ok.", "The first step is", 8, max_tokens=8))
    assert (row.finish, ids(row)[-1]) == ("stop", END)


@pytest.mark.parametrize(
    "sent",
    [
        request("What is <|im_end|>?"),
        request({"role": "system", "content": "Write <think> first"}, "Hi"),
        request("Hi", {"role": "tool", "name": "f", "content": "[EOS]"}),
        request("Hi", tools=[{"type": "function", "function": {"name": "f", "description": "</think>"}}]),
        request({"role": "user", "content": [{"type": "text", "text": "a <|im_user|> b"}]}),
    ],
)
def test_marker_text_in_a_request_is_refused_or_mirrored(sent: str):
    assert reason(verdict(said("R", "A", 4, request=sent))) == "marker_in_prompt"
    mirrored = kimi(ReconstructionSpec(markers_in_prompt="mirror"))
    assert len(ids(verdict(said("R", "A", 4, request=sent), mirrored))) == 4


@pytest.mark.parametrize("text", ["<im_end>", "<| im_end |>", "a < b | c > d", "[eos]", "<thinking>", "chas"])
def test_text_that_only_looks_like_a_marker_passes(text: str):
    assert verdict(said("R", "A", 4, request=request(text))).fault is None


def test_a_prompt_of_another_length_than_was_counted_is_refused():
    row = verdict(said("R", "A", 4, prompt_tokens=len(PROMPTS[True]) + 1))
    assert reason(row) == "prompt_count_differs"


def test_a_missing_prompt_is_rendered_and_counted():
    means = kimi(render=lambda sent: PROMPTS[True] if "Hi" in sent else [1])
    rendered = said("R", "A", 4, prompt_ids=None, prompt_tokens=len(PROMPTS[True]))
    row = verdict(rendered, means)
    assert row.prompt is not None
    assert row.prompt.tolist() == PROMPTS[True]
    assert reason(verdict(rendered | {"request": request("other")}, means)) == "prompt_count_differs"
    assert reason(verdict(rendered)) == "prompt_ids_missing"


def test_a_prompt_that_opens_otherwise_than_the_template_does_is_refused():
    closed_early = [*PROMPTS[False][:-2]]  # neither opened nor closed, as K2-Thinking's is
    assert reason(verdict(said("R", "A", 4, prompt_ids=closed_early))) == "prompt_opens_otherwise"


def test_returned_ids_that_say_something_else_than_the_text_are_refused():
    good: dict[str, Any] = {"output_ids": [18699, 1459, END], "thinking": False}
    assert verdict(said(None, "Hi there", 3, **good)).answer_text == "Hi there<|im_end|>"
    assert reason(verdict(said(None, "Hi where", 3, **good))) == "text_differs"
    assert ids(verdict(said(None, " Hi there\n", 3, **good))) == [18699, 1459, END]  # ids are right whatever is trimmed
    assert ids(verdict(said(None, "Hi there<|im_end|>", 3, **good))) == [18699, 1459, END]


def test_a_provider_that_does_not_bill_the_end_is_found_out():
    rows = [said("R", text, len(kimi().codec.encode([text])[0]) + 2, number=n) for n, text in enumerate("ABCDEF")]
    found = verdicts(rows)
    assert [row.delta for row in found] == [0] * 6
    assert [row.billed for row in found] == [4] * 6


def test_a_provider_that_does_not_bill_the_end_is_found_out_from_returned_ids():
    rows = [
        said(None, None, 2, output_ids=[18699, 1459, END], thinking=False, number=n, provider="p") for n in range(6)
    ]
    assert [row.fault for row in verdicts(rows)] == [None] * 6
    assert reason(verdict(rows[0])) == "billed_count_differs"


def test_an_answer_with_a_very_long_run_is_named():
    run = "abc" * 9000
    row = verdict(said("R", run, 9001 + 3))
    assert row.delta == -1
    assert reason(row) == "long_run"


def test_providers_are_named_after_the_engine_where_there_is_none_between():
    assert verdict(said("R", "A", 4, provider=None)).provider == "openrouter"
    assert verdict(said("R", "A", 4)).provider == PROVIDER
