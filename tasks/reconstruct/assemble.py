"""Turns a table of answers into exact sequences, and every answer that cannot be trusted into a quarantine row.

The witnesses are the engine's own counts: the difference between ids and billed tokens must be zero in every row. The
ids of an answer are the returned ones, or those of the one reading of its text that fits the count; and they must
decode to the text that came.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.answers import SEQUENCES
from schemas.errors import ContractViolation
from schemas.prompts import QUARANTINE, quarantine_row
from schemas.ragged import Ids
from tasks.reconstruct.agreement import settle_reasoning, settle_texts
from tasks.reconstruct.counting import USUAL, Counting, Observation
from tasks.reconstruct.judge import observations, settle_counts
from tasks.reconstruct.prompting import settle_prompts
from tasks.reconstruct.rebuild import settle_candidates
from tasks.reconstruct.row import Means, Row, providers_of, rows_of
from tasks.reconstruct.seams import settle_seams

STEP = "reconstruct"
SAMPLE = 200  # answers of a provider that its counting rule is read off

_MOST_IDS = 2**31 - 1  # of a list column, whose offsets are 32 bits
_KEPT = ("prompt_id", "root_id", "dataset", "request", "max_tokens", "engine", "provider", "model", "quantization")

Histogram = Counter[tuple[str, int | None, str]]  # rows by provider, delta and delta class


@dataclass(frozen=True)
class Origin:
    """What made the prompts, for the columns of SEQUENCES."""

    token_format: str
    template_sha256: str
    template_switches: str  # canonical JSON


@dataclass(frozen=True)
class Assembled:
    """The sequences and the quarantined answers of one table, and how their counts fell out."""

    sequences: pa.Table  # of contract SEQUENCES, which is checked where they are written
    quarantine: pa.Table
    histogram: Histogram

    def reasons(self) -> Counter[str]:
        """How many answers were quarantined for which reason."""
        return Counter(self.quarantine["reason"].to_pylist())


def observe(answers: pa.Table, means: Means) -> list[Observation]:
    """What a sample of answers (`sample`) tells about how their providers count."""
    rows = rows_of(answers)
    settle_prompts(rows, means)
    settle_candidates(rows, means)
    return observations(rows, means.token_format.seams)


def sample(answers: pa.Table, taken: Counter[str]) -> list[int]:
    """Rows from which counting rules can be inferred, at most `SAMPLE` of each provider.

    Args:
        answers: at least the columns provider, engine, finish_reason and completion_tokens of ANSWERS.
        taken: how many were taken from earlier tables; goes on from there.
    """
    counted = answers["completion_tokens"].is_valid().to_pylist()
    natural = [reason not in (None, "length", "max_tokens") for reason in answers["finish_reason"].to_pylist()]
    rows = []
    for row, (provider, usable) in enumerate(
        zip(providers_of(answers), map(all, zip(counted, natural, strict=True)), strict=True)
    ):
        if usable and taken[provider] < SAMPLE:
            taken[provider] += 1
            rows.append(row)
    return rows


def judge(answers: pa.Table, means: Means, rules: Mapping[str, Counting]) -> list[Row]:
    """The verdict on every answer (contract ANSWERS), in order."""
    rows = rows_of(answers)
    settle_prompts(rows, means)
    settle_candidates(rows, means)
    settle_counts(rows, rules, means)
    settle_seams(rows, rules, means)
    _settle_structure(rows, means)
    settle_reasoning(rows, means)
    settle_texts(rows, means)
    return rows


def assemble(answers: pa.Table, means: Means, rules: Mapping[str, Counting], origin: Origin) -> Assembled:
    """Judge every answer (contract ANSWERS); rows keep their order."""
    rows = judge(answers, means, rules)
    good = pa.array([row.fault is None for row in rows], pa.bool_())
    bad = pa.array([row.fault is not None for row in rows], pa.bool_())
    return Assembled(
        _sequences(answers.filter(good), [row for row in rows if row.fault is None], origin),
        _quarantine(answers.filter(bad), [row for row in rows if row.fault is not None]),
        histogram(rows),
    )


def histogram(rows: Sequence[Row]) -> Histogram:
    """How the counts of answers fell out that came as far as being counted."""
    return Counter((row.provider, row.delta, row.delta_class) for row in rows if row.delta_class)


def provider_rows(found: Histogram, rules: Mapping[str, Counting]) -> list[dict[str, object]]:
    """The rows of PROVIDERS."""
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or 0, item[0][2]))
    return [
        {
            "provider": provider,
            "end_counted": rules.get(provider, USUAL).rule.end_counted,
            "reasoning_inside": rules.get(provider, USUAL).rule.reasoning_inside,
            "rule_from": rules.get(provider, USUAL).source,
            "delta": delta,
            "delta_class": delta_class,
            "rows": rows,
        }
        for (provider, delta, delta_class), rows in ordered
    ]


def _settle_structure(rows: Sequence[Row], means: Means) -> None:
    """Rows whose ids are not such as the model can have given get the format's fault."""
    there = [row for row in rows if row.fault is None and row.completion is not None]
    found = means.token_format.faults(
        [row.prompt for row in there if row.prompt is not None],
        [row.completion for row in there if row.completion is not None],
        [row.finish for row in there],
    )
    for row, fault in zip(there, found, strict=True):
        if fault:
            row.refuse(*fault)


def _sequences(good: pa.Table, rows: Sequence[Row], origin: Origin) -> pa.Table:
    prompts = [row.prompt for row in rows if row.prompt is not None]
    completions = [row.completion for row in rows if row.completion is not None]
    lengths = np.array([len(ids) for pair in zip(prompts, completions, strict=True) for ids in pair], np.int64)
    marks = np.tile(np.array([0, 1], np.int8), len(rows))
    table = pa.table(
        {
            **{name: good[name] for name in _KEPT},
            "prompt_ids": _lists(prompts),
            "completion_ids": _lists(completions),
            "loss_mask": _ragged(np.repeat(marks, lengths), lengths.reshape(-1, 2).sum(axis=1)),
            "answer_text": pa.array([row.answer_text for row in rows], pa.string()),
            "provenance": pa.array(
                ["reconstructed" if row.output is None else "returned" for row in rows], pa.string()
            ),
            "finish_reason": pa.array([row.finish for row in rows], pa.string()),
            "billed": pa.array([row.billed for row in rows], pa.int32()),
            "billed_delta": pa.array([row.delta for row in rows], pa.int32()),
            "delta_class": pa.array([row.delta_class for row in rows], pa.string()),
            **{name: pa.array([value] * len(rows), pa.string()) for name, value in vars(origin).items()},
        }
    )
    return table.select(SEQUENCES.arrow.names).cast(SEQUENCES.arrow)


def _lists(rows: Sequence[Ids]) -> pa.Array:
    values = np.concatenate(rows).astype(np.int32, copy=False) if rows else np.zeros(0, np.int32)
    return _ragged(values, np.array([len(ids) for ids in rows], np.int64))


def _ragged(values: np.ndarray, lengths: np.ndarray) -> pa.Array:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if offsets[-1] > _MOST_IDS:
        raise ContractViolation(f"{offsets[-1]} ids are too many for one shard: make generation.shard_prompts smaller")
    offsets = offsets.astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _quarantine(bad: pa.Table, rows: Sequence[Row]) -> pa.Table:
    return QUARANTINE.table(
        quarantine_row(
            STEP,
            answer["dataset"],
            answer["prompt_id"],
            row.fault.reason,
            row.fault.detail,
            json.dumps(answer, ensure_ascii=False, sort_keys=True).encode(),
        )
        for answer, row in zip(bad.to_pylist(), rows, strict=True)
        if row.fault
    )
