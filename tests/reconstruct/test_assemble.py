"""Answers become sequences with exactly the ids that were returned, or quarantine rows that hold the whole answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.answers import ANSWERS
from tasks.reconstruct.assemble import assemble
from tasks.reconstruct.formats import PlainFormat
from tasks.reconstruct.task import reconstruct_sequences
from tests.rows import END, TARGET, TEMPLATE, VOCAB, answer, answers, prompt_id, run_body, stored

FORMAT = PlainFormat.of(TARGET.facts)


def reasons(**changes: Any) -> list[str]:
    return assemble(answers(answer(**changes)), FORMAT, TEMPLATE).quarantine["reason"].to_pylist()


def test_a_returned_answer_keeps_its_ids():
    (row,) = assemble(answers(answer()), FORMAT, TEMPLATE).sequences.to_pylist()
    assert row == {
        "prompt_id": prompt_id(0),
        "dataset": "chat",
        "prompt_ids": [1, 50, 51],
        "completion_ids": [60, 61, END],
        "provenance": "returned",
        "finish_reason": "stop",
        "billed_delta": 0,
        "template_sha256": TEMPLATE,
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"completion_tokens": 2}, "billed_count_differs"),
        ({"completion_tokens": 4}, "billed_count_differs"),
        ({"prompt_tokens": 4}, "prompt_count_differs"),
        ({"output_ids": [], "finish_reason": "length"}, "empty_completion"),
        ({"output_ids": [60, 61]}, "end_id_missing"),
        ({"output_ids": [60, VOCAB, END]}, "id_out_of_range"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_quarantined(changes: dict[str, Any], expected: str):
    assert reasons(**changes) == [expected]


def test_one_id_too_many_is_not_made_good_by_one_too_few():
    table = answers(answer(0, completion_tokens=2), answer(1, completion_tokens=4), answer(2))
    assembled = assemble(table, FORMAT, TEMPLATE)
    assert assembled.reasons() == {"billed_count_differs": 2}
    assert assembled.sequences["prompt_id"].to_pylist() == [prompt_id(2)]


def test_an_answer_cut_inside_a_character_has_exact_ids():
    assert reasons(text="caf\ufffd", output_ids=[60, 61], finish_reason="length") == []


def test_a_quarantined_answer_is_kept_whole():
    bad = answer(7, completion_tokens=9, text="Größe 👩‍👩‍👧‍👦\r\n")
    (row,) = assemble(answers(bad), FORMAT, TEMPLATE).quarantine.to_pylist()
    assert (row["step"], row["source_key"]) == ("reconstruct", prompt_id(7))
    assert row["detail"] == "3 completion ids, 9 were billed"
    assert json.loads(row["raw"]) == bad


def test_an_empty_shard_stays_empty():
    assembled = assemble(answers(), FORMAT, TEMPLATE)
    assert (assembled.sequences.num_rows, assembled.quarantine.num_rows) == (0, 0)


IDS = st.lists(st.integers(0, VOCAB + 1) | st.just(END), max_size=5)


@settings(max_examples=25)
@given(st.lists(st.tuples(IDS, st.sampled_from(["stop", "length"]), st.integers(0, 5)), max_size=8))
def test_every_answer_is_a_sequence_or_quarantined(drawn: list[tuple[list[int], str, int]]):
    rows = [
        answer(number, output_ids=ids, finish_reason=finish, completion_tokens=billed)
        for number, (ids, finish, billed) in enumerate(drawn)
    ]
    assembled = assemble(answers(*rows), FORMAT, TEMPLATE)
    kept = {row["prompt_id"]: row["completion_ids"] for row in assembled.sequences.to_pylist()}
    dropped = set(assembled.quarantine["source_key"].to_pylist())
    assert kept.keys() | dropped == {row["prompt_id"] for row in rows}
    assert not kept.keys() & dropped
    assert all(kept[row["prompt_id"]] == row["output_ids"] for row in rows if row["prompt_id"] in kept)


def test_the_task_writes_a_shard_for_each_shard_of_answers(store: Path):
    tables = [answers(answer(0), answer(1, completion_tokens=9)), answers(answer(2, output_ids=[5]))]
    found = run_body(reconstruct_sequences, TARGET, stored("answers", "answers", ANSWERS, tables))
    assert [table.num_rows for table in found.tables("sequences")] == [1, 0]
    assert found.rows("quarantine") == 2
    assert found.facts == {
        "rows_in": 3,
        "rows_out": 1,
        "quarantined": {"billed_count_differs": 1, "end_id_missing": 1},
    }
