"""Turns a table of answers into exact sequences, and every answer that cannot be trusted into a quarantine row.

The witnesses are the engine's own counts: the difference between ids and billed tokens must be zero in every row.
The text of an answer is not looked at: an answer that was cut inside a character still has exact ids.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.answers import SEQUENCES
from schemas.prompts import QUARANTINE, quarantine_row
from schemas.ragged import Ids, Ragged
from tasks.reconstruct.formats import Fault, TokenFormat

STEP = "reconstruct"


@dataclass(frozen=True)
class Assembled:
    """The sequences and the quarantined answers of one table."""

    sequences: pa.Table
    quarantine: pa.Table

    def reasons(self) -> Counter[str]:
        """How many answers were quarantined for which reason."""
        return Counter(self.quarantine["reason"].to_pylist())


def assemble(answers: pa.Table, token_format: TokenFormat, template_sha256: str) -> Assembled:
    """Judge every answer (contract ANSWERS); rows keep their order."""
    prompts, outputs = Ragged.of(answers["prompt_ids"]).rows(), Ragged.of(answers["output_ids"]).rows()
    counts = zip(
        answers["finish_reason"].to_pylist(),
        answers["prompt_tokens"].to_pylist(),
        answers["completion_tokens"].to_pylist(),
        strict=True,
    )
    faults = [
        _miscounted(prompt, output, prompt_tokens, completion_tokens) or token_format.fault(prompt, output, finish)
        for prompt, output, (finish, prompt_tokens, completion_tokens) in zip(prompts, outputs, counts, strict=True)
    ]
    good = answers.filter(pa.array([fault is None for fault in faults], pa.bool_()))
    bad = answers.filter(pa.array([fault is not None for fault in faults], pa.bool_()))
    return Assembled(_sequences(good, template_sha256), _quarantine(bad, [fault for fault in faults if fault]))


def _miscounted(prompt: Ids, output: Ids, prompt_tokens: int, completion_tokens: int) -> Fault | None:
    if len(prompt) != prompt_tokens:
        return Fault("prompt_count_differs", f"{len(prompt)} prompt ids, the engine counted {prompt_tokens}")
    if len(output) != completion_tokens:
        return Fault("billed_count_differs", f"{len(output)} completion ids, {completion_tokens} were billed")
    return None


def _sequences(good: pa.Table, template_sha256: str) -> pa.Table:
    rows = good.num_rows
    table = pa.table(
        {
            "prompt_id": good["prompt_id"],
            "dataset": good["dataset"],
            "prompt_ids": good["prompt_ids"],
            "completion_ids": good["output_ids"],
            "provenance": pa.array(["returned"] * rows, pa.string()),
            "finish_reason": good["finish_reason"],
            "billed_delta": pa.array(np.zeros(rows, np.int32)),
            "template_sha256": pa.array([template_sha256] * rows, pa.string()),
        },
        schema=SEQUENCES.arrow,
    )
    return SEQUENCES.check(table, "reconstructed sequences")


def _quarantine(bad: pa.Table, faults: list[Fault]) -> pa.Table:
    return QUARANTINE.table(
        quarantine_row(
            STEP,
            answer["dataset"],
            answer["prompt_id"],
            fault.reason,
            fault.detail,
            json.dumps(answer, ensure_ascii=False, sort_keys=True).encode(),
        )
        for answer, fault in zip(bad.to_pylist(), faults, strict=True)
    )
