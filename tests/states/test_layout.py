"""What is written is read back: exactly, or as closely as the storage allows; what does not fit together is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.corpus import HIDDEN_STATES
from schemas.errors import ArtifactInvalid, StoreError
from schemas.extraction import ExtractionSpec
from tasks.states.layout import Kept, bytes_of, refuse_too_long, state_row, stored_states
from tasks.states.source import Captured, TopTokens

HIDDEN = 8


def corpus_row(length: int, prompt_length: int) -> dict[str, Any]:
    return {
        "sequence_id": "some",
        "split": "train",
        "token_ids": list(range(length)),
        "prompt_length": prompt_length,
    }


def captured(length: int, prompt_length: int, top_k: int = 0, scale: float = 1.0) -> Captured:
    generator = torch.Generator().manual_seed(length)
    taught = length - prompt_length + 1
    aux = (torch.randn(length, 3 * HIDDEN, generator=generator) * scale).bfloat16()
    last = torch.randn(taught, HIDDEN, generator=generator).bfloat16()
    if not top_k:
        return Captured(0, aux, last, None)
    scores = torch.randn(taught, 50, generator=generator).log_softmax(-1).topk(top_k)
    return Captured(0, aux, None, TopTokens(scores.indices.to(torch.int32), scores.values))


@given(
    length=st.integers(2, 40),
    share=st.floats(0, 1),
    window=st.integers(0, 50),
    storage=st.sampled_from(["bfloat16", "float8"]),
    top_k=st.sampled_from([0, 1, 7]),
)
def test_a_row_meets_its_contract_takes_what_was_forecast_and_reads_back(
    length: int, share: float, window: int, storage: str, top_k: int
) -> None:
    prompt_length = 1 + int(share * (length - 2))
    spec = ExtractionSpec.model_validate({"storage": storage, "teacher_top_k": top_k, "prompt_window": window})
    given_states = captured(length, prompt_length, top_k)
    row = state_row(corpus_row(length, prompt_length), given_states, HIDDEN, spec)
    HIDDEN_STATES.table([row])
    binary = ("aux", "last", "scales", "top_ids", "top_log_probabilities")
    assert sum(len(row[name]) for name in binary) == bytes_of(length, prompt_length, HIDDEN, spec)

    found = stored_states(row)
    first = Kept.of(prompt_length, spec).first
    assert found.token_ids.tolist() == list(range(first, length))
    assert found.prompt_length == prompt_length - first == (min(window, prompt_length) if window else prompt_length)
    assert found.last_from == found.prompt_length - 1
    rounding = 0.0 if storage == "bfloat16" else 2**-4
    assert relative(found.aux, given_states.aux[first:]) <= rounding
    if top_k:
        assert found.top is not None
        assert given_states.top is not None
        assert torch.equal(found.top.ids, given_states.top.ids)
        assert torch.equal(found.top.log_probabilities, given_states.top.log_probabilities)
    else:
        assert found.top is None
        assert given_states.last is not None
        assert relative(found.last, given_states.last) <= rounding


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def test_float8_keeps_small_states_beside_the_one_that_takes_the_attention() -> None:
    states = captured(6, 2)
    states.aux[0, 3] = 24_000.0  # the first token of a real model
    row = state_row(corpus_row(6, 2), states, HIDDEN, ExtractionSpec(storage="float8"))
    assert relative(stored_states(row).aux[1:], states.aux[1:]) < 2**-4


def test_half_of_the_bytes_and_a_small_teacher() -> None:
    whole = bytes_of(1000, 400, 7168, ExtractionSpec())
    assert whole == (3 * 1000 + 601) * 7168 * 2
    assert bytes_of(1000, 400, 7168, ExtractionSpec(storage="float8")) / whole < 0.501
    assert bytes_of(1000, 400, 7168, ExtractionSpec(teacher_top_k=64)) / whole < 0.841
    assert bytes_of(100_000, 99_000, 7168, ExtractionSpec(prompt_window=2000)) / bytes_of(
        100_000, 99_000, 7168, ExtractionSpec()
    ) == pytest.approx(0.033, abs=0.001)


def test_a_sequence_whose_states_would_overflow_a_cell_is_refused_with_the_length_that_fits() -> None:
    most = 49_932
    assert most * 3 * 7168 * 2 <= 2**31 - 1 < (most + 1) * 3 * 7168 * 2
    refuse_too_long([("fits", most)], 7168, ExtractionSpec())
    with pytest.raises(StoreError, match=r"sequence long has 49,933 tokens.*at most 49,932.*corpus\.max_length"):
        refuse_too_long([("long", most + 1)], 7168, ExtractionSpec())
    refuse_too_long([("long", most + 1)], 7168, ExtractionSpec(storage="float8"))


@pytest.mark.parametrize("name", ["aux", "last"])
def test_a_cell_of_another_length_is_refused_by_sequence(name: str) -> None:
    row = state_row(corpus_row(9, 4), captured(9, 4), HIDDEN, ExtractionSpec())
    with pytest.raises(ArtifactInvalid, match="states of sequence some have another length"):
        stored_states(row | {name: row[name][:-2]})


def test_states_that_begin_after_the_prompt_are_refused() -> None:
    row = state_row(corpus_row(9, 4), captured(9, 4), HIDDEN, ExtractionSpec())
    with pytest.raises(ArtifactInvalid, match="sequence some lacks the states after its prompt"):
        stored_states(row | {"prompt_length": 2})
