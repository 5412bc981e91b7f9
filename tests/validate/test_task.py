"""The task reads real shards, writes a shard for each, and stops with the findings when a gate is closed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from schemas.answers import PROVIDERS, SEQUENCES
from schemas.prompts import PROMPTS
from schemas.sections import AuditSpec, ReconstructionSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.validate.audit import AuditFailed
from tasks.validate.task import audit_sequences
from tests import rows
from tests.rows import prompt_id, request, run_body, stored

END = 2
BENCHMARK = "Name three rivers of Poland."
OPEN = AuditSpec(max_quarantined_share=1, max_duplicate_share=1)


@pytest.fixture
def audited(tiny_artifact: Shards, tiny_spec: TargetSpec) -> Any:
    """Audits tables of a target that has SmolLM2's tokenizer."""

    def run(*tables: list[dict[str, Any]], spec: AuditSpec = OPEN) -> Shards:
        arguments = given(tiny_artifact, tiny_spec, tables, spec)
        return run_body(audit_sequences, **arguments)

    return run


def given(target: Shards, target_spec: TargetSpec, tables: Sequence[list[dict[str, Any]]], spec: AuditSpec) -> Any:
    """The task's arguments."""
    template = {"template_sha256": target.facts["template_sha256"]}
    question = rows.prompts(rows.prompt(BENCHMARK, split="benchmark"))
    return {
        "target": target,
        "answers": [],
        "sequences": [_reconstructed(f"shard{n}", [own | template for own in of]) for n, of in enumerate(tables)],
        "prompts": stored("prompts", "benchmark", PROMPTS, [question]),
        "spec": spec,
        "reconstruction": ReconstructionSpec(),
        "target_spec": target_spec,
    }


def good(number: int, **changes: Any) -> dict[str, Any]:
    own = {"request": request(f"Question {number} about the number {number}"), "completion_ids": [60, 61, END]}
    return rows.sequence(number, **(own | changes))


def _reconstructed(name: str, of: list[dict[str, Any]]) -> Shards:
    counted = {"provider": "A", "end_counted": True, "reasoning_inside": True, "rule_from": "inferred", "delta": 0}
    out = rows.Workspace(f"{name}/given.parquet")
    out.add_table("sequences", "sequences.parquet", SEQUENCES.table(of), SEQUENCES)
    table = PROVIDERS.table([counted | {"delta_class": "exact", "rows": len(of)}])
    out.add_table("providers", "providers.parquet", table, PROVIDERS)
    return out.publish(facts={"rows_in": len(of) + 1, "rows_out": len(of), "quarantined": {"not_nfc": 1}})


@pytest.mark.usefixtures("store")
def test_the_task_writes_a_shard_for_each_shard_and_the_audit(audited: Any):
    found = audited([good(1), good(2, request=request(BENCHMARK))], [good(1)], [good(3, completion_ids=[60, 61])])
    assert [table.num_rows for table in found.tables("sequences")] == [1, 0, 0]
    assert found.table("quarantine")["reason"].to_pylist() == [
        "benchmark_overlap",
        "duplicate_prompt",
        "end_id_missing",
    ]
    counts = {row["check"]: (row["rows"], row["failed"]) for row in found.table("audit").to_pylist()}
    assert counts["duplicate_prompt"] == (4, 1)
    assert counts["reconstruct:not_nfc"] == (7, 3)
    assert {"distribution": "billed_delta", "series": "A", "key": "0", "rows": 4} in found.table(
        "distributions"
    ).to_pylist()
    assert found.facts["rules"]["duplicate_prompt"] == "no earlier row has the same prompt"
    assert (found.facts["rows_in"], found.facts["rows_out"]) == (4, 1)


@pytest.mark.usefixtures("store")
def test_good_rows_leave_an_empty_quarantine(audited: Any):
    found = audited([good(1)])
    assert found.rows("sequences") == 1
    assert found.table("quarantine").num_rows == 0


@pytest.mark.usefixtures("store")
def test_a_closed_gate_fails_the_task_with_the_findings(audited: Any):
    with pytest.raises(AuditFailed) as caught:
        audited([good(1), good(2, completion_ids=[60])], spec=AuditSpec())
    assert "end_id_missing (1 of 2 rows, 50.00%)" in caught.value.brief
    assert caught.value.findings.quarantine["source_key"].to_pylist() == [prompt_id(2)]


@pytest.mark.usefixtures("prefect_server", "store")
def test_a_flow_gets_the_findings_of_a_closed_gate(tiny_artifact: Shards, tiny_spec: TargetSpec):
    arguments = given(tiny_artifact, tiny_spec, [[good(1), good(2, completion_ids=[60])]], AuditSpec())

    @flow(task_runner=cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner()))
    def auditing() -> None:
        audit_sequences.submit(**arguments).result()

    with pytest.raises(AuditFailed) as caught:
        auditing()
    assert caught.value.findings.facts["rows_in"] == 2


def test_a_large_quarantine_is_written_in_several_files(store: Path, audited: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tasks.validate.task._ROWS_PER_FILE", 2)
    found = audited(*([good(n, completion_ids=[60])] for n in range(5)), [good(9)])
    assert [shard.rows for shard in found.part("quarantine")] == [2, 2, 1]
    assert all(shard.locate(store).is_file() for shard in found.shards)
