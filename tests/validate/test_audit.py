"""The audit lets good rows through, quarantines each other row once, and its gates say why they are closed."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import GateFailed
from schemas.sections import ReconstructionSpec
from tasks.validate.audit import Audit, AuditFailed
from tests.rows import prompt_id, request
from tests.validate import kimi
from tests.validate.kimi import CLOSE, END, good, ids

FAULTY = {"completion_ids": ids("x", CLOSE, "y")}
CUT = {"completion_ids": ids("x"), "finish_reason": "length", "max_tokens": 1}


def counts(of: Audit) -> dict[str, int]:
    checks = of.table().to_pylist()
    return {row["check"]: row["failed"] for row in checks if row["failed"] and not row["check"].startswith("max_")}


def limits(of: Audit) -> dict[str, tuple[int, int, int]]:
    return {row["check"]: (row["rows"], row["failed"], row["limit"]) for row in of.table().to_pylist()}


def judged(rows: list[dict[str, Any]], **spec: Any) -> Audit:
    audit = kimi.audit(**spec)
    audit.take(kimi.table(*rows))
    return audit


def test_good_rows_pass_unchanged():
    audit = kimi.audit()
    table = kimi.table(good(1), good(2))
    assert audit.take(table).sequences.equals(table)
    audit.judge()
    assert audit.facts()["rows_out"] == 2


def test_a_quarantined_row_is_kept_whole():
    bad = good(2, **FAULTY)
    (row,) = kimi.audit().take(kimi.table(good(1), bad)).quarantine.to_pylist()
    assert (row["step"], row["source_key"], row["reason"]) == ("validate", prompt_id(2), "end_id_missing")
    assert row["detail"].startswith("a sequence must keep this rule: an answer that the model ended has its end id")
    assert json.loads(row["raw"]) == bad


def test_the_same_prompt_in_another_shard_is_quarantined():
    audit = kimi.audit()
    audit.take(kimi.table(good(1)))
    audited = audit.take(kimi.table(good(1, dataset="other"), good(2)))
    assert audited.sequences["prompt_id"].to_pylist() == [prompt_id(2)]
    assert counts(audit) == {"duplicate_prompt": 1}


def test_a_near_duplicate_in_another_shard_is_quarantined_and_turns_of_one_conversation_are_not():
    audit = kimi.audit()
    asked = "Please explain to me slowly how the gears of a bicycle work in detail"
    audit.take(kimi.table(good(1, request=request(asked))))
    again = good(2, request=request(asked, {"role": "assistant", "content": "So."}, "go on"), root_id=prompt_id(1))
    other = good(3, request=request(asked + "?"))
    assert kimi.reasons(audit, again, other) == {prompt_id(3): "near_duplicate"}


def test_another_system_text_or_other_tools_make_another_prompt():
    asked = {"role": "user", "content": "Please explain to me slowly how the gears of a bicycle work in detail"}
    brief, kind = ({"role": "system", "content": text} for text in ("Be brief.", "Be kind."))
    ride, walk = ([{"type": "function", "function": {"name": name}}] for name in ("ride", "walk"))
    sent = [
        {"messages": [asked]},
        {"messages": [brief, asked]},
        {"messages": [kind, asked]},
        {"messages": [asked], "tools": ride},
        {"messages": [asked], "tools": walk},
        {"messages": [brief, asked]},
        {"messages": [asked], "tools": ride},
    ]
    rows = [good(number, request=json.dumps(one)) for number, one in enumerate(sent)]
    assert kimi.reasons(kimi.audit(), *rows) == {prompt_id(5): "near_duplicate", prompt_id(6): "near_duplicate"}


def test_the_second_of_two_alike_stays_if_the_first_is_faulty():
    asked = request("Please explain to me slowly how the gears of a bicycle work in detail")
    found = kimi.reasons(kimi.audit(), good(1, request=asked, **FAULTY), good(2, request=asked))
    assert found == {prompt_id(1): "end_id_missing"}


def test_a_similarity_of_zero_does_not_look_for_near_duplicates():
    audit = kimi.audit(near_duplicate_similarity=0)
    assert kimi.reasons(audit, good(1), good(2, request=good(1)["request"])) == {}
    assert "near_duplicate" not in limits(audit)


def test_cut_answers_that_the_recipe_drops_do_not_count_for_the_share_of_each_rule():
    audit = judged([good(9), *(good(n, **CUT) for n in range(5))], on_length="drop", max_quarantined_share=0)
    audit.judge()
    assert counts(audit) == {"truncated": 5}


@pytest.mark.parametrize(
    ("field", "spoil"),
    [
        ("max_quarantined_share", lambda n: good(n, **FAULTY)),
        ("max_truncated_share", lambda n: good(n, **CUT)),
        ("max_duplicate_share", lambda n: good(n, request=good(0)["request"])),
        ("max_duplicate_share", lambda n: good(0)),
    ],
)
def test_a_gate_closes_on_one_row_more_than_its_share(field: str, spoil: Any):
    rows = [*(good(n) for n in range(18)), spoil(18), spoil(19)]
    judged(rows, **{field: 0.1}).judge()
    with pytest.raises(AuditFailed) as caught:
        judged(rows, **{field: 0.0999}).judge()
    assert "2 of 20 rows, 10.00%" in caught.value.brief
    assert f"audit.{field} allows 9.99%" in caught.value.brief


def test_the_gate_for_unexplained_counts_looks_at_what_reconstruct_quarantined():
    def audit(share: float) -> Audit:
        one = kimi.audit(max_unexplained_share=share)
        one.count_upstream("reconstruct", {"rows_in": 100, "quarantined": {"unexplained": 2, "not_nfc": 9}})
        one.take(kimi.table(good(1)))
        return one

    audit(0.02).judge()
    with pytest.raises(GateFailed, match=r"billed count in 2 of 100 rows, 2.00%; audit.max_unexplained_share allows"):
        audit(0.019).judge()


def test_what_earlier_steps_quarantined_counts_for_the_gate():
    audit = kimi.audit(max_quarantined_share=0.05)
    audit.count_upstream("generate", {"rows_in": 40, "quarantined": {"refused": 2}})
    audit.count_upstream("reconstruct", {"rows_in": 10, "quarantined": {"billed_count_differs": 9}})
    audit.take(kimi.table(good(1)))
    assert counts(audit) == {"generate:refused": 2, "reconstruct:billed_count_differs": 9}
    with pytest.raises(GateFailed, match=r"too many rows fail reconstruct:billed_count_differs \(9 of 10 rows, 90"):
        audit.judge()


@pytest.mark.parametrize(
    "reason", ["parent_unusable", "tool_call_missing", "tool_call_mismatch", "tool_result_missing"]
)
def test_turns_that_the_targets_own_answers_end_are_counted_and_close_no_gate(reason: str):
    audit = kimi.audit(max_quarantined_share=0.05)
    audit.count_upstream("generate", {"rows_in": 10, "quarantined": {reason: 9}})
    audit.take(kimi.table(good(1)))
    assert counts(audit) == {f"generate:{reason}": 9}
    audit.judge()


def test_too_few_rows_close_the_gate():
    judged([good(1), good(2)], min_rows=2).judge()
    with pytest.raises(GateFailed, match=r"2 good rows are left, audit\.min_rows asks for 3"):
        judged([good(1), good(2)], min_rows=3).judge()


def test_no_row_at_all_closes_the_gate():
    with pytest.raises(GateFailed, match="0 good rows are left"):
        kimi.audit().judge()


def test_a_closed_gate_tells_the_whole_audit_with_examples_and_survives_a_process():
    audit = judged([good(1), good(2, **FAULTY)], max_quarantined_share=0.1)
    with pytest.raises(AuditFailed) as caught:
        audit.judge()
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 (our own)
    assert f"(e.g. prompts {prompt_id(2)})" in str(error)
    assert "end_id_missing                              2        1        0" in str(error)
    assert error.findings.quarantine["reason"].to_pylist() == ["end_id_missing"]
    assert error.findings.audit.equals(audit.table())
    assert error.findings.distributions.num_rows > 0


def test_a_share_is_not_lost_by_rounding():
    audit = judged([good(n) for n in range(100)], max_quarantined_share=0.29)
    assert limits(audit)["end_id_missing"] == (100, 0, 29)


def test_an_audit_in_shards_finds_what_an_audit_in_one_finds():
    rows = [good(n, **(FAULTY if n % 5 == 0 else {"request": good(n // 3)["request"]})) for n in range(30)]
    whole, parts = kimi.audit(), kimi.audit()
    kept = whole.take(kimi.table(*rows)).sequences
    shards = [parts.take(kimi.table(*rows[start : start + 7])).sequences for start in range(0, 30, 7)]
    assert pa.concat_tables(shards).equals(kept)
    assert parts.findings().distributions.equals(whole.findings().distributions)
    assert parts.facts() == whole.facts()


ROW = st.fixed_dictionaries(
    {
        "number": st.integers(0, 9),
        "completion_ids": st.lists(
            st.sampled_from([*ids("a b"), CLOSE, END, 163606, 163595, 163840, 9618]), max_size=5
        ),
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls"]),
        "delta_class": st.sampled_from(["exact", "unverified"]),
        "provider": st.sampled_from([None, "A", "B"]),
        "template_sha256": st.sampled_from(["ab" * 32, "cd" * 32]),
        "answer_text": st.sampled_from([None, "", "a"]),
        "request": st.sampled_from([request("Hi"), request("What is it that you do all day?"), "{", '{"messages":3}']),
    }
)


@settings(max_examples=60)
@given(
    st.lists(st.lists(ROW, max_size=6), max_size=4),
    st.sampled_from([{}, {"on_length": "drop", "providers": ["A"]}, {"near_duplicate_similarity": 0}]),
    st.sampled_from(["keep", "quarantine"]),
)
def test_rows_in_are_rows_out_plus_quarantined(shards: list[list[dict[str, Any]]], spec: Any, unverified: Any):
    audit = kimi.audit(ReconstructionSpec(unverified=unverified), **spec)
    kept = dropped = 0
    for shard in shards:
        rows = [good(**row) for row in shard]
        audited = audit.take(kimi.table(*rows))
        both = [*audited.sequences["prompt_id"].to_pylist(), *audited.quarantine["source_key"].to_pylist()]
        assert sorted(both) == sorted(row["prompt_id"] for row in rows)
        kept += audited.sequences.num_rows
        dropped += audited.quarantine.num_rows
    facts: Any = audit.facts()
    assert (kept + dropped, kept) == (facts["rows_in"], facts["rows_out"])
    assert sum(facts["quarantined"].values()) == dropped
