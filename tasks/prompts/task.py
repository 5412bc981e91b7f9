"""The task that gathers a run's prompts. The sources are located by the flow, and known here by their content."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa

from schemas.prompts import PROMPTS, QUARANTINE, quarantine_row
from schemas.sections import DatasetSpec
from tasks.artifacts.artifact import Shards, SourceFile
from tasks.artifacts.task import artifact_task, workspace
from tasks.prompts.adapters import Prompt, Rejected
from tasks.prompts.gather import gather
from tasks.prompts.locate import read_source

STEP = "prompts"

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="1")
def gather_prompts(
    datasets: list[DatasetSpec], sources: list[SourceFile], shard_prompts: int, benchmark_shard_prompts: int
) -> Shards:
    """The prompts of all datasets: parts `train`, `benchmark` and `quarantine`.

    Args:
        datasets: the recipe's datasets.
        sources: their files, from `locate_sources`, in the same order.
        shard_prompts: training prompts per shard.
        benchmark_shard_prompts: benchmark prompts per shard.

    Raises:
        PromptSourceError: a source cannot be used at all, or no prompt is left of a split.
    """
    contents = [read_source(dataset, source) for dataset, source in zip(datasets, sources, strict=True)]
    gathered = gather(datasets, contents)
    out = workspace()
    for split, prompts, size in (
        ("train", gathered.train, shard_prompts),
        ("benchmark", gathered.benchmark, benchmark_shard_prompts),
    ):
        for number, table in enumerate(prompt_tables(prompts, split, size)):
            out.add_table(split, f"{split}-{number:05d}.parquet", table, PROMPTS)
    out.add_table("quarantine", "quarantine.parquet", quarantine_table(gathered.rejected), QUARANTINE)
    facts = gathered.facts()
    _log.info(
        "%d training and %d benchmark prompts; quarantined: %s",
        len(gathered.train),
        len(gathered.benchmark),
        facts["quarantined"] or "none",
    )
    return out.publish(facts=facts)


def prompt_tables(prompts: list[Prompt], split: str, size: int) -> Iterator[pa.Table]:
    """The prompts of one split as tables of at most `size` rows."""
    for start in range(0, len(prompts), size):
        yield PROMPTS.table(
            {
                "prompt_id": prompt.prompt_id,
                "dataset": prompt.dataset,
                "source_key": prompt.source_key,
                "split": split,
                "messages": prompt.messages,
            }
            for prompt in prompts[start : start + size]
        )


def quarantine_table(rejected: Iterable[Rejected]) -> pa.Table:
    """Every row that could not go on, with its bytes."""
    return QUARANTINE.table(
        quarantine_row(STEP, row.dataset, row.source_key, row.reason, row.detail, row.raw) for row in rejected
    )
