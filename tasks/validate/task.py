"""The task that audits all reconstructed sequences of a run."""

from __future__ import annotations

import logging

import pyarrow as pa

from schemas.answers import AUDIT, SEQUENCES
from schemas.prompts import QUARANTINE
from schemas.sections import AuditSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import artifact_task, workspace
from tasks.validate.audit import STEP, Audit
from tasks.validate.rules import TargetRules

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="1")
def audit_sequences(target: Shards, answers: list[Shards], sequences: list[Shards], spec: AuditSpec) -> Shards:
    """The sequences that keep every rule: parts `sequences` (a shard for each shard in), `quarantine` and `audit`.

    Args:
        target: the prepared target.
        answers: results of generate, whose quarantined rows count for the gate too.
        sequences: results of reconstruct, whose quarantined rows do so as well.
        spec: what may pass.

    Raises:
        GateFailed: a rule failed in more rows than the recipe allows, or too few rows are left.
    """
    audit = Audit(TargetRules.of(target.facts), spec)
    out = workspace()
    quarantined = [QUARANTINE.table([])]
    number = 0
    for artifact in answers:
        audit.count_upstream("generate", artifact.facts)
    for artifact in sequences:
        audit.count_upstream("reconstruct", artifact.facts)
        for table in artifact.tables("sequences"):
            audited = audit.take(table)
            out.add_table("sequences", f"sequences-{number:05d}.parquet", audited.sequences, SEQUENCES)
            quarantined.append(audited.quarantine)
            number += 1
    audit.judge()
    out.add_table("quarantine", "quarantine.parquet", pa.concat_tables(quarantined), QUARANTINE)
    out.add_table("audit", "audit.parquet", audit.table(), AUDIT)
    facts = audit.facts()
    _log.info("%d of %d sequences pass; warnings: %s", facts["rows_out"], facts["rows_in"], facts["warnings"] or "none")
    return out.publish(facts=facts)
