"""The task that audits all reconstructed sequences of a run."""

from __future__ import annotations

import logging

import pyarrow as pa

from schemas.answers import AUDIT, DISTRIBUTIONS, SEQUENCES
from schemas.prompts import QUARANTINE
from schemas.sections import AuditSpec, ReconstructionSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import artifact_task, workspace
from tasks.artifacts.workspace import Workspace
from tasks.formats.registry import bind
from tasks.overlap import BenchmarkIndex
from tasks.target.text import load_codec_of
from tasks.validate.audit import STEP, Audit
from tasks.validate.figures import Known
from tasks.validate.texts import benchmark_questions

BENCHMARK, PROVIDERS = "benchmark", "providers"  # parts of the results of prompts and of reconstruct

_ROWS_PER_FILE = 4096  # of the quarantine

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="3", exclude=("target_spec",))
def audit_sequences(
    target: Shards,
    answers: list[Shards],
    sequences: list[Shards],
    prompts: Shards,
    spec: AuditSpec,
    reconstruction: ReconstructionSpec,
    target_spec: TargetSpec,
) -> Shards:
    """The sequences that keep every rule: parts `sequences` (a shard for each shard in), `quarantine`, `audit` and
    `distributions`.

    Args:
        target: the prepared target.
        answers: results of generate, whose quarantined rows count for the gates too.
        sequences: results of reconstruct, whose quarantined rows do so as well.
        prompts: the result of prompts, for its benchmark prompts.
        spec: what may pass.
        reconstruction: what becomes of answers without a count.
        target_spec: where the target's tokenizer lies.

    Raises:
        AuditFailed: a rule failed in more rows than the recipe allows, or too few rows are left.
    """
    codec = load_codec_of(target, target_spec)
    form = bind(target.facts["token_format"], codec, end_ids=target.facts["eos_ids"])
    benchmark = BenchmarkIndex(asked for table in prompts.tables(BENCHMARK) for asked in benchmark_questions(table))
    audit = Audit(Known.of(target.facts, codec, form, benchmark), spec, reconstruction)
    out = workspace()
    rejected = _Rejected(out)
    number = 0
    for artifact in answers:
        audit.count_upstream("generate", artifact.facts)
    for artifact in sequences:
        audit.count_upstream("reconstruct", artifact.facts)
        for table in artifact.tables(PROVIDERS):
            audit.distributions.take_providers(table)
        for table in artifact.tables("sequences"):
            audited = audit.take(table)
            out.add_table("sequences", f"sequences-{number:05d}.parquet", audited.sequences, SEQUENCES)
            rejected.add(audited.quarantine)
            number += 1
    findings = audit.judge()
    rejected.close()
    out.add_table("audit", "audit.parquet", findings.audit, AUDIT)
    out.add_table("distributions", "distributions.parquet", findings.distributions, DISTRIBUTIONS)
    facts = dict(findings.facts)
    _log.info("%d of %d sequences pass; warnings: %s", facts["rows_out"], facts["rows_in"], facts["warnings"] or "none")
    return out.publish(facts=facts)


class _Rejected:
    """Writes quarantined rows as they come, some thousand to a file, so that they need not all fit in memory."""

    def __init__(self, out: Workspace) -> None:
        self._out = out
        self._files = 0
        self._waiting = [QUARANTINE.arrow.empty_table()]

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) >= _ROWS_PER_FILE:
            self._write()

    def close(self) -> None:
        if not self._files or len(self._waiting) > 1:
            self._write()

    def _write(self) -> None:
        name = f"quarantine-{self._files:05d}.parquet"
        self._out.add_table("quarantine", name, pa.concat_tables(self._waiting), QUARANTINE)
        self._files += 1
        self._waiting = [QUARANTINE.arrow.empty_table()]
