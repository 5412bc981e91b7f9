"""The task that gathers a run's prompts. The sources are located by the flow, and known here by their content."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

import pyarrow as pa

from schemas.prompts import PROMPTS, QUARANTINE, quarantine_row
from schemas.sections import DatasetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import artifact_task, workspace
from tasks.prompts.conversation import Rejected
from tasks.prompts.gather import gather
from tasks.prompts.locate import Source
from tasks.prompts.selection import Selection

STEP = "prompts"

_QUARANTINE_ROWS = 10_000  # per shard

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="3")
def gather_prompts(
    datasets: list[DatasetSpec], sources: list[Source], shard_prompts: int, benchmark_shard_prompts: int
) -> Shards:
    """The prompts of all datasets: parts `train`, `benchmark` and `quarantine`.

    Args:
        datasets: the recipe's datasets.
        sources: what they name, from `locate_sources`, in the same order.
        shard_prompts: training prompts per shard; a conversation's turns are never in two shards.
        benchmark_shard_prompts: benchmark prompts per shard.

    Raises:
        PromptSourceError: a source cannot be used at all, or no prompt is left of a split.
    """
    out = workspace()
    gathered = gather(datasets, sources, out.ensure_folder())
    for split, prompts, size in (
        ("train", gathered.train, shard_prompts),
        ("benchmark", gathered.benchmark, benchmark_shard_prompts),
    ):
        for number, table in enumerate(prompt_tables(prompts, split, size)):
            out.add_table(split, f"{split}-{number:05d}.parquet", table, PROMPTS)
    for number, table in enumerate(quarantine_tables(gathered.rejected)):
        out.add_table("quarantine", f"quarantine-{number:05d}.parquet", table, QUARANTINE)
    facts = gathered.facts()
    _log.info(
        "%d training prompts of %d conversations and %d benchmark prompts; quarantined: %s",
        len(gathered.train),
        gathered.train.conversations,
        len(gathered.benchmark),
        facts["quarantined"] or "none",
    )
    return out.publish(facts=facts)


def prompt_tables(prompts: Selection, split: str, size: int) -> Iterator[pa.Table]:
    """The prompts of one split as tables of at most `size` rows, or of one conversation that is longer."""
    for shard in prompts.shards(size):
        yield PROMPTS.table(
            {
                "prompt_id": prompt.prompt_id,
                "root_id": prompt.root_id,
                "parent_id": prompt.parent_id,
                "turn": prompt.turn,
                "dataset": prompt.dataset,
                "source_key": prompt.source_key,
                "split": split,
                "messages": prompt.messages,
                "tools": prompt.tools,
            }
            for prompt in shard
        )


def quarantine_tables(rejected: Iterable[Rejected]) -> Iterator[pa.Table]:
    """Every row that could not go on, with its bytes; one empty table if there is none."""
    rows = iter(rejected)
    shard = list(islice(rows, _QUARANTINE_ROWS))
    while True:
        yield QUARANTINE.table(
            quarantine_row(STEP, row.dataset, row.source_key, row.reason, row.detail, row.raw) for row in shard
        )
        shard = list(islice(rows, _QUARANTINE_ROWS))
        if not shard:
            return
