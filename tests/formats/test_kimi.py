"""Kimi's answers: what text and ids they can be, with the real vocabulary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import TokenFormatError
from tasks.formats.codec import load_codec
from tasks.formats.format import Fault, Opening, Part, Said, ToolCall
from tasks.formats.registry import bind
from tests.formats.texts import tricky
from tests.kimi_templates import TEMPLATES
from tests.tokenizers import codec, folder

KIMI = codec("kimi")
K25, THINKING, K2 = (bind(name, KIMI) for name in ("kimi-k2.5", "kimi-k2-thinking", "kimi-k2"))

OPEN, CLOSE, END = 163606, 163607, 163586
BEGIN, CALL, ARGUMENT, CALL_END, SECTION_END = 163595, 163597, 163598, 163599, 163596
SECTION = (
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.ls:0<|tool_call_argument_begin|>{"path": "."}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
SECTION_PARTS = (BEGIN, CALL, "functions.ls:0", ARGUMENT, '{"path": "."}', CALL_END, SECTION_END)
PROMPT = {"open": [163588, 69702, 163601, OPEN], "closed": [163588, 69702, 163601, OPEN, CLOSE]}


def readings(
    reasoning: str | None, content: str | None, opening: Opening = "open", ended: bool = True
) -> list[tuple[tuple[Part, ...], str]]:
    found = K25.readings(Said(reasoning, content, ended), opening)
    assert not isinstance(found, Fault)
    return [(reading.parts, reading.doubt) for reading in found]


def ids(parts: tuple[Part, ...]) -> list[int]:
    rows = [KIMI.encode([part])[0] if isinstance(part, str) else [part] for part in parts]
    return [number for row in rows for number in row]


def array(row: list[int]) -> np.ndarray:
    return np.array(row, dtype=np.int32)


def fault(completion: list[int], opening: str = "open", finish_reason: str = "stop") -> str:
    (found,) = K25.faults([array([2482, *PROMPT[opening]])], [array(completion)], [finish_reason])
    return found.reason if found else ""


def test_reasoning_and_content_are_joined_by_the_close_marker():
    ((parts, doubt),) = readings("Two plus two is four.", "The answer is 4.")
    assert parts == ("Two plus two is four.", CLOSE, "The answer is 4.", END)
    assert ids(parts) == [17285, 9620, 2069, 387, 4771, 13, 163607, 1008, 7574, 387, 220, 19, 13, 163586]
    assert not doubt


@pytest.mark.parametrize(("reasoning", "content"), [("x = 1\n", "\n\nDone"), (" a ", " b ")])
def test_white_space_is_neither_trimmed_nor_added(reasoning: str, content: str):
    assert readings(reasoning, content) == [((reasoning, CLOSE, content, END), "")]


def test_tool_markers_in_content_are_single_ids():
    parts, doubt = readings("I should list files.", SECTION)[0]
    assert parts == ("I should list files.", CLOSE, *SECTION_PARTS, END)
    assert not doubt


def test_white_space_inside_a_tool_section_stays_text():
    spaced = SECTION.replace("<|tool_call_begin|>", "\n<|tool_call_begin|>")
    assert readings("R", f"A {spaced} B")[0][0] == ("R", CLOSE, "A ", BEGIN, "\n", *SECTION_PARTS[1:], " B", END)


def test_the_close_marker_may_be_missing_before_a_tool_section():
    section = SECTION.replace("functions.ls", "functions.cat").replace('{"path": "."}', "{}")
    (with_close, first), (without, second) = readings("I need the file", section)
    assert (len(ids(with_close)), len(ids(without))) == (16, 15)
    assert (first, second) == ("", "missing_close_before_tools")
    assert CLOSE not in without


def test_reasoning_that_was_cut_has_neither_close_marker_nor_end():
    assert readings("Let me think about", None, ended=False) == [
        (("Let me think about",), ""),
        (("Let me think about", CLOSE), "unexplained"),
    ]
    assert len(ids(("Let me think about",))) == 4


def test_content_that_was_cut_has_no_end():
    ((parts, _),) = readings("ok.", "The first step is", ended=False)
    assert parts == ("ok.", CLOSE, "The first step is")
    assert len(ids(parts)) == 7


def test_a_tool_section_that_was_cut_is_still_ids():
    ((parts, _),) = readings("R", "A" + SECTION[: SECTION.index("{")], ended=False)
    assert parts == ("R", CLOSE, "A", BEGIN, CALL, "functions.ls:0", ARGUMENT)


def test_a_natural_stop_without_content_leaves_the_close_marker_in_doubt():
    assert readings("R", "") == [(("R", CLOSE, END), ""), (("R", END), "unexplained")]


def test_with_thinking_off_all_text_is_content_whatever_the_server_called_it():
    text = "Hello! How can I help you today?"
    assert readings(text, None, "closed") == readings(None, text, "closed") == [((text, END), "")]


def test_reasoning_beside_content_cannot_be_with_thinking_off():
    found = K25.readings(Said("R", "A", True), "closed")
    assert isinstance(found, Fault)
    assert found.reason == "close_marker_unasked"


@pytest.mark.parametrize(
    ("reasoning", "content"), [("<think>hmm", "ok"), (None, "<think>R</think>A"), ("R", "<think>")]
)
def test_an_open_marker_that_the_prompt_has_cannot_be_in_the_answer(reasoning: str | None, content: str):
    found = K25.readings(Said(reasoning, content, True), "open")
    assert isinstance(found, Fault)
    assert found.reason == "open_marker_in_answer"


def test_inline_reasoning_is_split_at_the_first_close_marker():
    assert readings(None, "R</think>A") == [(("R", CLOSE, "A", END), "")]
    assert readings(None, "R</think>A</think>B") == [
        (("R", CLOSE, "A</think>B", END), ""),
        (("R", CLOSE, "A", CLOSE, "B", END), "marker_text_in_answer"),
    ]
    assert readings(None, f"R</think>{SECTION}") == [(("R", CLOSE, *SECTION_PARTS, END), "")]


def test_content_without_reasoning_may_hide_some():
    assert readings(None, "A") == [((CLOSE, "A", END), ""), (("A", END), "reasoning_not_returned")]
    assert len(ids((CLOSE, "A", END))) == 3


def test_marker_text_in_an_answer_is_read_both_ways():
    assert readings("R", "say <|im_user|>") == [
        (("R", CLOSE, "say <|im_user|>", END), ""),
        (("R", CLOSE, "say ", 163587, END), "marker_text_in_answer"),
    ]
    torn = "the <|tool_call_end|> marker"
    assert [parts for parts, _ in readings("R", torn)] == [
        ("R", CLOSE, torn, END),
        ("R", CLOSE, "the ", CALL_END, " marker", END),
    ]


def test_an_end_of_turn_written_as_text_was_not_sampled():
    assert readings("R", "say <|im_end|> now") == [(("R", CLOSE, "say <|im_end|> now", END), "")]


def test_a_cut_answer_without_text_is_none():
    found = K25.readings(Said(None, "", False), "open")
    assert isinstance(found, Fault)
    assert found.reason == "empty_completion"


def test_k2_thinking_samples_the_open_marker():
    for said in (Said("R", "A", True), Said("<think>R", "A", True), Said(None, "<think>R</think>A", True)):
        found = THINKING.readings(said, "unsaid")
        assert not isinstance(found, Fault)
        assert [reading.parts for reading in found] == [(OPEN, "R", CLOSE, "A", END)]
    assert OPEN in THINKING.reply_ids


def test_k2_has_no_reasoning_to_read():
    found = K2.readings(Said(None, f"A{SECTION}", True), "unsaid")
    assert not isinstance(found, Fault)
    assert [reading.parts for reading in found] == [("A", *SECTION_PARTS, END)]


def test_ids_that_an_answer_can_hold_are_forced_into_a_draft_vocabulary():
    assert set(K25.reply_ids) == {163586, 163595, 163596, 163597, 163598, 163599, 163607}
    assert K25.end_ids == (163586,)


@pytest.mark.parametrize(
    ("completion", "opening", "reason"),
    [
        ([18699, CLOSE, 1459, END], "open", ""),
        ([18699, 1459, END], "closed", ""),
        (ids(("R", CLOSE, *SECTION_PARTS, END)), "open", ""),
        (ids(("R", *SECTION_PARTS, END)), "open", ""),
        ([18699, 1459, END], "open", "close_marker_missing"),
        ([18699, CLOSE, 1459, CLOSE, 1459, END], "open", "close_marker_repeated"),
        ([18699, CLOSE, 1459, END], "closed", "close_marker_unasked"),
        ([OPEN, CLOSE, 1459, END], "open", "open_marker_in_answer"),
        ([OPEN, 1459, END], "closed", "open_marker_in_answer"),
        ([18699, CLOSE, END, 1459, END], "open", "end_id_inside"),
        ([18699, CLOSE, END, 1459], "open", "end_id_inside"),
        ([18699, CLOSE, 1459], "open", "end_id_missing"),
        ([687, 163533], "open", "end_id_missing"),
        ([CLOSE, 163585], "open", "end_id_missing"),
        ([18699, CLOSE, 163587, END], "open", "role_marker_in_answer"),
        ([18699, CLOSE, BEGIN, CALL, 1459, END], "open", "tool_markers_unbalanced"),
        ([18699, CLOSE, SECTION_END, END], "open", "tool_markers_unbalanced"),
        ([163840, 163845], "open", "id_out_of_range"),
        ([-1, END], "open", "id_out_of_range"),
        ([], "open", "empty_completion"),
    ],
)
def test_the_structure_of_a_finished_answer(completion: list[int], opening: str, reason: str):
    assert fault(completion, opening) == reason


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ([18699], ""),
        ([18699, CLOSE, 1459], ""),
        ([18699, CLOSE, BEGIN, CALL, 1459], ""),
        ([18699, CLOSE, BEGIN, CALL, ARGUMENT, CALL_END, SECTION_END, BEGIN], ""),
        ([18699, CLOSE, BEGIN, ARGUMENT], "tool_markers_unbalanced"),
        ([18699, CLOSE, 1459, END], "end_id_after_cut"),
    ],
)
def test_the_structure_of_a_cut_answer(completion: list[int], reason: str):
    assert fault(completion, finish_reason="length") == reason


def test_a_fault_names_what_was_found():
    prompt = array(PROMPT["open"])
    repeated, missing = K25.faults(
        [prompt, prompt], [array([CLOSE, 5, CLOSE, END]), array([687, 163533])], ["stop", "tool_calls"]
    )
    assert repeated
    assert repeated.detail.endswith("its markers: </think> </think> <|im_end|>")
    assert missing
    assert missing.detail.endswith("its last id is 163533")


def test_parallel_calls_are_read_in_order_with_their_ids():
    call = '<|tool_call_begin|>{}<|tool_call_argument_begin|>{{"n": 1}}<|tool_call_end|>'
    calls = "".join(call.format(name) for name in ("functions.ls:3", "cat:4", "find", " functions.a-b:0 "))
    text = f"why</think>So:<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>\n<|im_end|>"
    reply = K25.reply(array(KIMI.encode_prompt([text])[0]), "open")
    assert (reply.reasoning, reply.content) == ("why", "So:\n")
    assert reply.calls == tuple(
        ToolCall(name, '{"n": 1}', call_id)
        for name, call_id in (
            ("ls", "functions.ls:3"),
            ("cat", "functions.cat:4"),
            ("find", "functions.find:2"),
            ("a-b", "functions.a-b:0"),
        )
    )


def test_reasoning_ends_at_a_tool_section_that_comes_first():
    reply = K25.reply(array(ids(("why", *SECTION_PARTS, END))), "open")
    assert (reply.reasoning, reply.content, len(reply.calls)) == ("why", "", 1)


def test_reasoning_that_never_ends_is_all_reasoning():
    assert K25.reply(array(ids(("why",))), "open").reasoning == "why"
    assert K25.reply(array(ids(("why",))), "closed").content == "why"


@given(reasoning=tricky, content=tricky)
@settings(max_examples=150)
def test_the_likeliest_reading_says_the_same_text(reasoning: str, content: str):
    found = K25.readings(Said(reasoning, content, True), "open")
    if isinstance(found, Fault):
        assert found.reason == "open_marker_in_answer"
        return
    text = KIMI.decode([ids(found[0].parts)])[0]
    between = "" if not reasoning and "</think>" in content else "</think>"
    assert text == f"{reasoning}{between}{content}<|im_end|>"
    assert len({reading.parts for reading in found}) == len(found)


@given(reasoning=tricky, content=tricky)
@settings(max_examples=100)
def test_what_was_sampled_is_among_the_readings_of_its_text(reasoning: str, content: str):
    reasoning, content = (text.replace("think>", "") for text in (reasoning, content))
    sampled = ids(((reasoning or "R"), CLOSE, *((content,) if content else ()), END))
    found = K25.readings(Said(reasoning or "R", content, True), "open")
    assert not isinstance(found, Fault)
    assert sampled in [ids(reading.parts) for reading in found]


@pytest.mark.parametrize(
    ("name", "switches", "opening"),
    [
        ("kimi-k2", {}, "unsaid"),
        ("kimi-k2-thinking", {}, "unsaid"),
        ("kimi-k2.5", {}, "open"),
        ("kimi-k2.5", {"thinking": False}, "closed"),
        ("kimi-k2.5", {"enable_thinking": False}, "open"),
        ("kimi-k2.6", {"thinking": True}, "open"),
        ("kimi-k2.6", {"thinking": False}, "closed"),
    ],
)
def test_the_opening_is_read_off_the_prompt(name: str, switches: dict[str, bool], opening: Opening):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    history = [
        {"role": "user", "content": "say <think>"},
        {"role": "assistant", "content": "A", "reasoning_content": "R"},
        {"role": "user", "content": "and </think>"},
    ]
    prompt = environment.from_string(TEMPLATES[name]).render(messages=history, add_generation_prompt=True, **switches)
    own = bind(name, KIMI)
    assert own.opening(array(KIMI.encode_prompt([prompt])[0])) == opening
    assert opening in own.opens_in_prompt.values()


def test_the_vocabulary_is_the_published_one():
    content = (folder("kimi") / "tiktoken.model").read_bytes()
    assert len(content) == 2_795_286
    assert hashlib.sha256(content).hexdigest() == "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"


def _changed(tmp_path: Path, ids_by_name: dict[str, int], ranks: bytes | None = None) -> Path:
    (tmp_path / "tiktoken.model").write_bytes(ranks or (folder("kimi") / "tiktoken.model").read_bytes())
    added = json.loads((folder("kimi") / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    kept = {number: token for number, token in added.items() if token["content"] not in ids_by_name}
    kept |= {str(number): {"content": name, "special": False} for name, number in ids_by_name.items()}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": kept}))
    return tmp_path


def test_a_moved_marker_stops_with_both_values(tmp_path: Path):
    moved = load_codec(_changed(tmp_path, {"</think>": 163608}))
    with pytest.raises(TokenFormatError, match=r"</think> has id 163608 .* it is 163607 in the format kimi-k2\.5"):
        bind("kimi-k2.5", moved)


def test_another_vocabulary_file_stops_with_both_hashes(tmp_path: Path):
    lines = (folder("kimi") / "tiktoken.model").read_bytes().split(b"\n")
    first, second = lines[0].split()[0], lines[1].split()[0]
    lines[:2] = [second + b" 0", first + b" 1"]
    with pytest.raises(TokenFormatError, match=r"has the sha256 [0-9a-f]{64}; that of kimi-k2\.5 has b6c497a7"):
        bind("kimi-k2.5", load_codec(_changed(tmp_path, {}, b"\n".join(lines))))


@pytest.mark.parametrize("wrong", [163533, 163585])
def test_another_end_of_turn_in_the_configuration_stops_with_both_values(wrong: int):
    with pytest.raises(TokenFormatError, match=rf"ends a turn with \[{wrong}\]; kimi-k2.5 ends it with 163586"):
        bind("kimi-k2.5", KIMI, [wrong])
    assert bind("kimi-k2.5", KIMI, [163586]).end_ids == (163586,)
