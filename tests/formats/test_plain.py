"""Plain answers: text and an end id, of any model whose tokenizer is byte-level."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.errors import TokenFormatError
from tasks.formats.format import Fault, Said
from tasks.formats.registry import bind
from tests.tokenizers import codec

SMOLLM2 = codec("smollm2")
END = 2
PLAIN = bind("plain", SMOLLM2, [END])


def fault(completion: list[int], finish_reason: str = "stop") -> str:
    (found,) = PLAIN.faults([np.array([1, 4093, 198])], [np.array(completion, dtype=np.int32)], [finish_reason])
    return found.reason if found else ""


def test_an_answer_is_its_text_and_the_end_id_after_a_natural_stop():
    for ended, end in ((True, (END,)), (False, ())):
        found = PLAIN.readings(Said(None, " Hi \n", ended), "unsaid")
        assert not isinstance(found, Fault)
        assert [(reading.parts, reading.doubt) for reading in found] == [((" Hi \n", *end), "")]


def test_marker_text_is_read_both_ways():
    found = PLAIN.readings(Said(None, "a<|im_start|>b", True), "unsaid")
    assert not isinstance(found, Fault)
    assert [reading.parts for reading in found] == [("a<|im_start|>b", END), ("a", 1, "b", END)]
    assert found[1].doubt == "marker_text_in_answer"


def test_reasoning_apart_from_content_cannot_be_read():
    assert isinstance(PLAIN.readings(Said("R", "A", True), "unsaid"), Fault)


@pytest.mark.parametrize(
    ("completion", "finish_reason", "reason"),
    [
        ([26843, END], "stop", ""),
        ([26843], "length", ""),
        ([], "stop", "empty_completion"),
        ([26843], "stop", "end_id_missing"),
        ([26843, END, 26843], "stop", "end_id_inside"),
        ([26843, END], "length", "end_id_after_cut"),
        ([26843, 1, END], "stop", "role_marker_in_answer"),
        ([49152, END], "stop", "id_out_of_range"),
    ],
)
def test_the_structure_of_an_answer(completion: list[int], finish_reason: str, reason: str):
    assert fault(completion, finish_reason) == reason


def test_the_reply_is_all_content():
    reply = PLAIN.reply(np.array([*SMOLLM2.encode([" Hi"])[0], END], dtype=np.int32), "unsaid")
    assert (reply.reasoning, reply.content, reply.calls) == ("", " Hi", ())


def test_end_ids_must_be_given_and_be_control_tokens():
    with pytest.raises(TokenFormatError, match="must be told which ids end a turn"):
        bind("plain", SMOLLM2)
    with pytest.raises(TokenFormatError, match=r"ends a turn with id 163533, .* the text 'chas'"):
        bind("plain", codec("kimi"), [163533])
