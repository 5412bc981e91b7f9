"""The task that reconstructs the sequences of one shard of answers, or of several."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.answers import PROVIDERS, SEQUENCES
from schemas.prompts import QUARANTINE
from schemas.sections import ReconstructionSpec, TargetSpec
from tasks.artifacts.artifact import Shard, Shards
from tasks.artifacts.files import verify_file
from tasks.artifacts.task import artifact_task, workspace
from tasks.formats.registry import bind
from tasks.reconstruct.ahead import ahead
from tasks.reconstruct.assemble import STEP, Histogram, Origin, assemble, observe, provider_rows, sample
from tasks.reconstruct.counting import USUAL, Counting, Observation, counting_rules
from tasks.reconstruct.row import Means
from tasks.target.text import load_codec_of, render_request

_COUNTED = ["provider", "engine", "finish_reason", "completion_tokens"]

_ROWS_IN_MEMORY = 2000  # quarantined ones, each with its whole answer

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="3", exclude=("target_spec",))
def reconstruct_sequences(target: Shards, answers: Shards, spec: ReconstructionSpec, target_spec: TargetSpec) -> Shards:
    """The exact ids of every answer: parts `sequences` (a shard for each of answers), `quarantine` and `providers`.

    A counting rule is read off all the answers that are given here, so give those of a provider together where it
    matters.

    Args:
        target: the prepared target, for its tokenizer, template and end ids.
        answers: part `answers` (contract ANSWERS).
        spec: the recipe's section.
        target_spec: where the target's files are.
    """
    means = means_of(target, spec, target_spec)
    origin = origin_of(target.facts)
    rules = counting_rules(_observations(answers, means), spec.counting)
    out = workspace()
    quarantine = _Quarantine()
    reasons: Counter[str] = Counter()
    histogram: Histogram = Counter()
    rows = 0
    made = ahead(lambda table: assemble(table, means, rules, origin), answers.tables("answers"))
    for number, assembled in enumerate(made):
        out.add_table("sequences", f"sequences-{number:05d}.parquet", assembled.sequences, SEQUENCES)
        quarantine.add(assembled.quarantine)
        reasons += assembled.reasons()
        histogram += assembled.histogram
        rows += assembled.sequences.num_rows + assembled.quarantine.num_rows
    quarantine.flush()
    out.add_table("providers", "providers.parquet", PROVIDERS.table(provider_rows(histogram, rules)), PROVIDERS)
    counts = dict(sorted(reasons.items()))
    _log.info("%d answers, %d quarantined: %s", rows, reasons.total(), counts or "none")
    return out.publish(
        facts={
            "rows_in": rows,
            "rows_out": rows - reasons.total(),
            "quarantined": counts,
            "delta_classes": _by_class(histogram),
            "counting": _described(rules, histogram),
        }
    )


def means_of(target: Shards, spec: ReconstructionSpec, target_spec: TargetSpec) -> Means:
    """What the answers of a prepared target are judged with.

    Raises:
        TargetError: the target's files are missing or were changed.
        TokenFormatError: its tokenizer is not that of its token format.
    """
    codec = load_codec_of(target, target_spec)
    token_format = bind(target.facts["token_format"], codec, target.facts["eos_ids"])
    return Means(token_format, codec, spec, lambda request: render_request(target, target_spec, request))


def origin_of(target_facts: Mapping[str, Any]) -> Origin:
    """What made the prompts of a prepared target."""
    switches = json.dumps(target_facts["template_switches"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Origin(target_facts["token_format"], target_facts["template_sha256"], switches)


class _Quarantine:
    """Quarantined rows on their way to files, of which only some are in memory."""

    def __init__(self) -> None:
        self._waiting: list[pa.Table] = [QUARANTINE.table([])]  # there is always a file
        self._files = 0

    def add(self, table: pa.Table) -> None:
        """Take the rows of a shard."""
        self._waiting.append(table)
        if sum(waiting.num_rows for waiting in self._waiting) >= _ROWS_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            name = f"quarantine-{self._files:05d}.parquet"
            workspace().add_table("quarantine", name, pa.concat_tables(self._waiting), QUARANTINE)
            self._waiting, self._files = [], self._files + 1


def _observations(answers: Shards, means: Means) -> list[Observation]:
    """What a bounded sample over all shards tells about how their providers count."""
    taken: Counter[str] = Counter()
    found: list[Observation] = []
    for shard in answers.part("answers"):
        if rows := sample(_columns(shard), taken):
            found += observe(pq.read_table(shard.locate()).take(rows), means)
    return found


def _columns(shard: Shard) -> pa.Table:
    path = shard.locate()
    verify_file(path, shard.bytes, shard.sha256, "size")
    return pq.read_table(path, columns=_COUNTED)


def _by_class(histogram: Histogram) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, _, delta_class), rows in histogram.items():
        found[delta_class] += rows
    return dict(sorted(found.items()))


def _described(rules: Mapping[str, Counting], histogram: Histogram) -> dict[str, dict[str, Any]]:
    """The rule of every provider whose answers were counted, and where it is known from."""
    providers = sorted({provider for provider, _, _ in histogram})
    found = {name: rules.get(name, USUAL) for name in providers}
    return {name: {**counting.rule.model_dump(), "from": counting.source} for name, counting in found.items()}
