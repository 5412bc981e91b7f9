"""The audit lets good rows through unchanged, quarantines the others once each, and its gate says why it is closed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.answers import SEQUENCES
from schemas.errors import GateFailed
from schemas.sections import AuditSpec
from tasks.validate.audit import Audit
from tasks.validate.rules import TargetRules
from tasks.validate.task import audit_sequences
from tests.rows import END, TARGET, VOCAB, prompt_id, run_body, sequence, sequences, stored

OPEN = AuditSpec(max_quarantined_share=1, min_rows=1)


def audit(**spec: Any) -> Audit:
    return Audit(TargetRules.of(TARGET.facts), OPEN.model_copy(update=spec))


def counts(of: Audit) -> dict[str, int]:
    return {row["check"]: row["failed"] for row in of.table().to_pylist() if row["failed"]}


def test_good_rows_pass_unchanged():
    table = sequences(sequence(1), sequence(2))
    judged = audit()
    assert judged.take(table).sequences.equals(table)
    judged.judge()
    assert judged.facts()["rows_out"] == 2


def test_a_row_that_breaks_two_rules_is_quarantined_for_the_first():
    judged = audit()
    bad = sequence(2, completion_ids=[60, VOCAB, END, 61])
    audited = judged.take(sequences(sequence(1), bad))
    (row,) = audited.quarantine.to_pylist()
    assert (row["step"], row["source_key"], row["reason"]) == ("validate", prompt_id(2), "id_out_of_range")
    assert row["detail"] == "a sequence must keep this rule: every id is one of the target's"
    assert json.loads(row["raw"]) == bad
    assert counts(judged) == {"id_out_of_range": 1}


def test_the_same_prompt_in_another_shard_is_quarantined():
    judged = audit()
    judged.take(sequences(sequence(1)))
    audited = judged.take(sequences(sequence(1, dataset="other"), sequence(2)))
    assert audited.sequences["prompt_id"].to_pylist() == [prompt_id(2)]
    assert counts(judged) == {"duplicate_prompt": 1}


def test_a_loop_is_counted_and_kept():
    judged = audit(max_quarantined_share=0)
    looping = sequence(1, prompt_ids=[5], completion_ids=[60] * 48, finish_reason="length")
    assert judged.take(sequences(looping)).sequences.num_rows == 1
    judged.judge()
    assert judged.facts()["warnings"] == {"ends_in_a_loop": 1}
    assert judged.facts()["quarantined"] == {}


def test_the_gate_closes_on_one_row_more_than_the_share():
    rows = [sequence(number) for number in range(18)]
    bad = [sequence(number, completion_ids=[60, 61]) for number in range(18, 20)]
    held = audit(max_quarantined_share=0.1)
    held.take(sequences(*rows, *bad))
    held.judge()
    closed = audit(max_quarantined_share=0.09)
    closed.take(sequences(*rows, *bad))
    with pytest.raises(GateFailed) as caught:
        closed.judge()
    message = str(caught.value)
    assert "too many rows fail: end_id_missing" in message
    assert f"an answer that finished by stop ends with an end id (e.g. prompts {prompt_id(18)}" in message
    assert "raise audit.max_quarantined_share (now 0.09)" in message
    assert "end_id_missing                             20        2        1" in message


def test_a_share_is_not_lost_by_rounding():
    judged = audit(max_quarantined_share=0.29)
    judged.take(sequences(*(sequence(number) for number in range(100))))
    assert {row["limit"] for row in judged.table().to_pylist()} == {29, 100}


def test_cut_answers_that_the_recipe_drops_do_not_close_the_gate():
    judged = audit(on_length="drop", max_quarantined_share=0)
    cut = [sequence(number, completion_ids=[60, 61], finish_reason="length") for number in range(5)]
    audited = judged.take(sequences(sequence(9), *cut))
    judged.judge()
    assert audited.sequences["prompt_id"].to_pylist() == [prompt_id(9)]
    assert counts(judged) == {"truncated": 5}


def test_too_few_rows_close_the_gate():
    judged = audit(min_rows=3)
    judged.take(sequences(sequence(1), sequence(2)))
    with pytest.raises(GateFailed, match=r"2 good rows are left, audit\.min_rows asks for 3"):
        judged.judge()


def test_no_row_at_all_closes_the_gate():
    with pytest.raises(GateFailed, match="0 good rows are left"):
        audit().judge()


def test_what_reconstruct_quarantined_counts_for_the_gate():
    judged = audit(max_quarantined_share=0.05)
    judged.count_upstream("reconstruct", {"rows_in": 10, "rows_out": 1, "quarantined": {"billed_count_differs": 9}})
    judged.take(sequences(sequence(1)))
    assert counts(judged) == {"reconstruct:billed_count_differs": 9}
    with pytest.raises(GateFailed, match="too many rows fail: reconstruct:billed_count_differs"):
        judged.judge()


ROWS = st.tuples(
    st.integers(0, 6), st.lists(st.sampled_from([5, 6, END, VOCAB]), min_size=1), st.sampled_from(["stop", "length"])
)


@settings(max_examples=25)
@given(
    st.lists(st.lists(ROWS, max_size=5, unique_by=lambda row: row[0]), max_size=4), st.sampled_from(["keep", "drop"])
)
def test_rows_in_are_rows_out_plus_quarantined(shards: list[list[tuple[int, list[int], str]]], on_length: str):
    judged = audit(on_length=on_length)
    kept = dropped = 0
    for shard in shards:
        rows = [sequence(number, completion_ids=ids, finish_reason=finish) for number, ids, finish in shard]
        audited = judged.take(sequences(*rows))
        kept += audited.sequences.num_rows
        dropped += audited.quarantine.num_rows
    facts = judged.facts()
    assert (kept + dropped, kept) == (facts["rows_in"], facts["rows_out"])
    assert sum(facts["quarantined"].values()) == dropped  # pyright: ignore[reportAttributeAccessIssue]


def test_the_task_writes_a_shard_for_each_shard_and_the_audit(store: Path):
    first = stored("one", "sequences", SEQUENCES, [sequences(sequence(1)), sequences(sequence(2))], rows_in=2)
    second = stored("two", "sequences", SEQUENCES, [sequences(sequence(1))], rows_in=1)
    found = run_body(audit_sequences, TARGET, [], [first, second], OPEN)
    assert [table.num_rows for table in found.tables("sequences")] == [1, 1, 0]
    assert found.table("quarantine")["reason"].to_pylist() == ["duplicate_prompt"]
    assert {row["check"]: row["failed"] for row in found.table("audit").to_pylist()}["duplicate_prompt"] == 1
    assert found.facts["rules"]["duplicate_prompt"] == "no earlier row has the same prompt"
