"""The plain format takes answers that the model can have given, and names what is wrong with any other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.reconstruct.formats import PlainFormat
from tests.rows import ALSO_END, END, TARGET, VOCAB

FORMAT = PlainFormat.of(TARGET.facts)


def reason(output: list[int], finish: str = "stop", prompt: list[int] | None = None) -> str | None:
    fault = FORMAT.fault(np.array(prompt or [1, 50], np.int32), np.array(output, np.int32), finish)
    return fault.reason if fault else None


@pytest.mark.parametrize(
    ("output", "finish"),
    [
        ([60, END], "stop"),
        ([60, ALSO_END], "stop"),
        ([END], "stop"),
        ([60], "length"),
        ([VOCAB - 1, 1, END], "stop"),  # another control id inside is what the model said
    ],
)
def test_what_the_model_can_have_said_passes(output: list[int], finish: str):
    assert reason(output, finish) is None


@pytest.mark.parametrize(
    ("output", "finish", "expected"),
    [
        ([], "length", "empty_completion"),
        ([60, VOCAB, END], "stop", "id_out_of_range"),
        ([-1], "length", "id_out_of_range"),
        ([60, 61], "stop", "end_id_missing"),
        ([60, END, 61], "length", "end_id_inside"),
        ([60, END, END], "stop", "end_id_inside"),
        ([60, END], "length", "end_id_after_cut"),
    ],
)
def test_what_it_cannot_have_said_is_named(output: list[int], finish: str, expected: str):
    assert reason(output, finish) == expected


def test_a_prompt_id_out_of_range_is_named():
    fault = FORMAT.fault(np.array([VOCAB], np.int32), np.array([60, END], np.int32), "stop")
    assert fault is not None
    assert fault == ("id_out_of_range", f"the prompt has id {VOCAB}; the target's are 0 to {VOCAB - 1}")


def test_an_end_id_in_the_prompt_is_no_fault():
    assert reason([60, END], prompt=[1, END, 50]) is None


@given(st.lists(st.integers(-3, VOCAB + 3), max_size=6), st.sampled_from(["stop", "length"]))
def test_passing_answers_are_exactly_the_well_formed_ones(output: list[int], finish: str):
    body, ends = (output[:-1], output[-1:]) if finish == "stop" else (output, [])
    inside = all(0 <= number < VOCAB for number in output)
    closed = all(number in (END, ALSO_END) for number in ends) and len(output) > 0
    assert (reason(output, finish) is None) == (inside and closed and not {END, ALSO_END} & set(body))
