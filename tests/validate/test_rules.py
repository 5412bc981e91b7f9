"""Each rule finds the row that breaks it, and no other rule does."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.ragged import Ragged
from schemas.sections import AuditSpec
from tasks.validate.rules import LOOP_BLOCK, LOOP_TAIL, TargetRules, end_in_a_loop, failures, figures, rules_for
from tests.rows import ALSO_END, CONTEXT, END, TARGET, VOCAB, sequence, sequences

RULES = TargetRules.of(TARGET.facts)


def broken(on_length: str = "keep", seen: tuple[str, ...] = (), **changes: Any) -> list[str]:
    rules = rules_for(AuditSpec.model_validate({"on_length": on_length}))
    table = sequences(sequence(1), sequence(2, **changes), sequence(3))
    failed = failures(figures(table, RULES, seen), rules)
    assert all(rows in ([], [1]) for rows in failed.values())
    return [name for name, rows in failed.items() if rows]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"completion_ids": [60, VOCAB, END]}, "id_out_of_range"),
        ({"prompt_ids": [1, VOCAB]}, "id_out_of_range"),
        ({"template_sha256": "cd" * 32}, "other_template"),
        ({"prompt_ids": [1, 50, END]}, "prompt_is_closed"),
        ({"completion_ids": [60, END, 61, END]}, "end_id_inside"),
        ({"completion_ids": [60, ALSO_END, END]}, "end_id_inside"),
        ({"completion_ids": [60, 61]}, "end_id_missing"),
        ({"completion_ids": [60, END], "finish_reason": "length"}, "end_id_after_cut"),
        ({"prompt_ids": [5] * (CONTEXT - 2)}, "longer_than_context"),
        ({"completion_ids": [*[60, 61] * 24, END][:-1], "finish_reason": "length"}, "ends_in_a_loop"),
    ],
)
def test_a_broken_rule_is_found_alone(changes: dict[str, Any], rule: str):
    assert broken(**changes) == [rule]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"completion_ids": [60, ALSO_END]},
        {"completion_ids": [60], "finish_reason": "length"},
        {"prompt_ids": [1, END, 50]},
        {"prompt_ids": [5] * (CONTEXT - 3)},
    ],
)
def test_a_good_row_breaks_no_rule(changes: dict[str, Any]):
    assert broken(**changes) == []


def test_a_cut_answer_breaks_a_rule_only_where_cut_answers_are_dropped():
    cut = {"completion_ids": [60, 61], "finish_reason": "length"}
    assert broken("keep", **cut) == []
    assert broken("drop", **cut) == ["truncated"]


def test_a_prompt_of_an_earlier_shard_is_a_duplicate():
    assert broken(seen=(sequence(2)["prompt_id"],)) == ["duplicate_prompt"]


def test_every_rule_has_a_sentence_and_is_tried_here():
    names = [rule.name for rule in rules_for(AuditSpec(on_length="drop"))]
    assert len(set(names)) == len(names) == 10
    assert all(rule.sentence for rule in rules_for(AuditSpec()))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7] * LOOP_TAIL, True),
        ([7] * (LOOP_TAIL - 1), False),
        ([1, 2, 3, *[7] * LOOP_TAIL], True),
        ([*[7] * LOOP_TAIL, 1], False),
        ([*range(LOOP_BLOCK)] * 3, True),
        ([*range(LOOP_BLOCK + 1)] * 3, False),
        ([*range(500)], False),
        ([], False),
    ],
)
def test_a_loop_is_a_short_block_over_and_over_at_the_end(ids: list[int], expected: bool):
    column = pa.array([[1, 2], ids, [3]], pa.list_(pa.int32()))
    assert end_in_a_loop(Ragged.of(column)).tolist() == [False, expected, False]


def test_figures_of_an_empty_shard_are_empty():
    frame = figures(sequences(), RULES, ())
    assert len(frame) == 0
    assert not any(failures(frame, rules_for(AuditSpec())).values())
    assert frame.dtypes.unique().tolist() == [np.dtype("int64")]
