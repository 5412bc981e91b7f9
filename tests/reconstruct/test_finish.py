"""What servers call the end of an answer is one of three words of ours, or named as unknown."""

import pytest

from tasks.formats.format import Fault
from tasks.reconstruct.finish import fills_limit, named_end


@pytest.mark.parametrize(
    ("returned", "ours"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("eos", "stop"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("length", "length"),
        ("max_tokens", "length"),
    ],
)
def test_known_words_are_mapped(returned: str, ours: str):
    assert named_end(returned, False) == ours


@pytest.mark.parametrize("returned", ["content_filter", "STOP", "", "stop_sequence"])
def test_any_other_word_is_a_fault(returned: str):
    found = named_end(returned, True)
    assert isinstance(found, Fault)
    assert found.reason == "unknown_finish_reason"


def test_a_missing_word_is_a_fault_unless_the_ids_show_the_end():
    assert named_end(None, True) == "stop"
    found = named_end(None, False)
    assert isinstance(found, Fault)
    assert found.reason == "finish_reason_missing"


def test_an_answer_that_fills_its_limit_may_have_been_cut():
    assert fills_limit("tool_calls", 64, 64, None)
    assert fills_limit("stop", 64, 40, 24)  # reasoning beside
    assert not fills_limit("stop", 64, 63, None)
    assert not fills_limit("length", 64, 64, None)
    assert not fills_limit("stop", None, 64, None)
    assert not fills_limit("stop", 64, None, None)
