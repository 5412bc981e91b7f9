"""The task that reconstructs the sequences of one shard of answers, or of several."""

from __future__ import annotations

import logging
from collections import Counter

import pyarrow as pa

from schemas.answers import SEQUENCES
from schemas.prompts import QUARANTINE
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import artifact_task, workspace
from tasks.reconstruct.assemble import STEP, assemble
from tasks.reconstruct.formats import PlainFormat

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="1")
def reconstruct_sequences(target: Shards, answers: Shards) -> Shards:
    """The exact ids of every answer: parts `sequences` (a shard for each shard of answers) and `quarantine`.

    Args:
        target: the prepared target, for its end ids, vocabulary and template.
        answers: part `answers` (contract ANSWERS).
    """
    token_format = PlainFormat.of(target.facts)
    out = workspace()
    quarantined: list[pa.Table] = []
    reasons: Counter[str] = Counter()
    rows = 0
    for number, table in enumerate(answers.tables("answers")):
        assembled = assemble(table, token_format, target.facts["template_sha256"])
        out.add_table("sequences", f"sequences-{number:05d}.parquet", assembled.sequences, SEQUENCES)
        quarantined.append(assembled.quarantine)
        reasons += assembled.reasons()
        rows += table.num_rows
    quarantine = pa.concat_tables([QUARANTINE.table([]), *quarantined])
    out.add_table("quarantine", "quarantine.parquet", quarantine, QUARANTINE)
    counts = dict(sorted(reasons.items()))
    _log.info("%d answers, %d quarantined: %s", rows, reasons.total(), counts or "none")
    return out.publish(facts={"rows_in": rows, "rows_out": rows - reasons.total(), "quarantined": counts})
