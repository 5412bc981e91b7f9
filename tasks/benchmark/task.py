"""The task that measures one drafter on one shard of benchmark prompts. Finished batches survive a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import torch

from schemas.errors import ArtifactInvalid, DraftError, PromptSourceError
from schemas.measures import ACCEPTANCE
from schemas.prompts import QUARANTINE
from schemas.sections import BenchmarkSpec, ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import read_table, write_table
from tasks.artifacts.store import require_space
from tasks.artifacts.task import Workspace, artifact_task, workspace
from tasks.benchmark.batch import Answer, DecodeSettings
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import Drafter, EagleDrafter, NgramDrafter, PlainDrafter
from tasks.draft.checkpoint import load_draft
from tasks.progress import progress
from tasks.target.model import Target, load_target
from tasks.target.rendering import RenderedShard, Renderer, cut_batches, render_shard

_BYTES_PER_TOKEN = 16  # its id and its text, once in a batch's file and once in the result


@artifact_task(version="1", exclude=("target_spec", "compute"))
def measure_acceptance(
    target: Shards,
    draft: Shards | None,
    prompts: Shards,
    drafter: str,
    spec: BenchmarkSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """Decode one shard of prompts with a drafter; parts "acceptance" and "quarantine".

    Args:
        target: the prepared target.
        draft: the exported draft; needed by "trained" and "untrained" only.
        prompts: their part "benchmark".
        drafter: "none" (greedy only, what the others' greedy output must equal), "ngram", "untrained" or "trained".
        spec: chain, temperatures and limits.
        seed: the recipe's.
        target_spec: where the target is.
        compute: threads.

    Raises:
        DraftError: the draft is missing, damaged, or of another target.
        EngineError: the target cannot be decoded speculatively in this process.
        StoreError: the answers would not fit on the disk.
    """
    torch.set_num_threads(compute.threads_per_worker)
    settings = settings_of(drafter, spec, seed, target.facts)
    table = pa.concat_tables(prompts.tables("benchmark"))
    tokens = table.num_rows * len(settings.temperatures) * settings.max_tokens
    require_space(tokens * _BYTES_PER_TOKEN, f"measuring the drafter {drafter} on {table.num_rows} prompts")
    model = load_target(target, target_spec)
    make = drafter_factory(drafter, draft, model, spec)
    room = spec.max_tokens + spec.chain
    shard = render_shard(table, Renderer.of(target, target_spec), room, "benchmark")
    return measure_shard(shard, model, drafter, make, settings, spec, workspace())


def drafter_factory(name: str, draft: Shards | None, target: Target, spec: BenchmarkSpec) -> Callable[[], Drafter]:
    """What makes a fresh drafter for each batch.

    Raises:
        DraftError: no draft is given where one is needed, or it is of another target.
    """
    if name == "none":
        return PlainDrafter
    if name == "ngram":
        return lambda: NgramDrafter(spec.ngram_max)
    if draft is None:
        raise DraftError(f"drafter {name!r} needs a draft: export one first")
    model = load_draft(draft).eval().requires_grad_(False).to(target.device)
    for field, wanted in (("target_hidden_size", "hidden_size"), ("vocab_size", "vocab_size")):
        found, right = getattr(model.config, field), target.facts[wanted]
        if found != right:
            raise DraftError(f"the draft's {field} is {found}, the target has {right}: it was trained for another one")
    return lambda: EagleDrafter(model, target)


def settings_of(drafter: str, spec: BenchmarkSpec, seed: int, facts: dict[str, Any]) -> DecodeSettings:
    """How this drafter is run: "none" proposes nothing and is only needed at temperature 0."""
    plain = drafter == "none"
    return DecodeSettings(
        temperatures=(0.0,) if plain else tuple(spec.temperatures),
        chain=0 if plain else spec.chain,
        max_tokens=spec.max_tokens,
        end_ids=tuple(facts["eos_ids"]),
        seed=seed,
    )


def measure_shard(
    shard: RenderedShard,
    target: Target,
    name: str,
    make: Callable[[], Drafter],
    settings: DecodeSettings,
    spec: BenchmarkSpec,
    space: Workspace,
) -> Shards:
    """Decode the batches that an earlier attempt did not finish, and write all rows in the order of the prompts."""
    if not shard.prompts:
        raise PromptSourceError(
            f"none of the {len(shard.quarantine)} benchmark prompts of this shard can be decoded, the first because "
            f"{shard.quarantine[0]['detail']}: give shorter prompts, or lower benchmark.max_tokens"
        )
    started, made = time.perf_counter(), 0
    tables: list[pa.Table] = []
    total = len(shard.prompts) * len(settings.temperatures)
    with progress(f"benchmark.{name}", total, "answers") as bar:
        for number, batch in enumerate(cut_batches(shard.prompts, spec.batch_size)):
            path = space.path(f"batch-{number:05d}.parquet")
            try:
                table = read_table(path, ACCEPTANCE)
                bar.advance(table.num_rows)
            except ArtifactInvalid:  # not there, or not whole
                answers = decode(target, make(), name, batch, settings, bar.advance)
                table = ACCEPTANCE.table([acceptance_row(answer, name) for answer in answers], f"batch {number}")
                write_table(path, table, ACCEPTANCE)
                made += sum(len(answer.output_ids) for answer in answers)
            tables.append(table)
    seconds = time.perf_counter() - started
    place = {prompt.prompt_id: index for index, prompt in enumerate(shard.prompts)}
    rows = [row for table in tables for row in table.to_pylist()]
    rows.sort(key=lambda row: (place[row["prompt_id"]], row["temperature"]))
    space.add_table("acceptance", "acceptance.parquet", ACCEPTANCE.table(rows, "acceptance"), ACCEPTANCE)
    space.add_table("quarantine", "quarantine.parquet", QUARANTINE.table(shard.quarantine, "quarantine"), QUARANTINE)
    tokens = sum(len(row["output_ids"]) for row in rows)
    facts = {"drafter": name, "answers": len(rows), "tokens": tokens, "quarantined": len(shard.quarantine)}
    return space.publish(facts, {"benchmark_seconds": seconds, "tokens_per_second": made / max(seconds, 1e-9)})


def acceptance_row(answer: Answer, drafter: str) -> dict[str, Any]:
    """One row of ACCEPTANCE."""
    return {
        "prompt_id": answer.prompt.prompt_id,
        "dataset": answer.prompt.dataset,
        "drafter": drafter,
        "temperature": answer.temperature,
        "chain": answer.chain,
        "output_ids": answer.output_ids,
        "verify_steps": answer.verify_steps,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "accepted_by_position": answer.accepted_by_position,
    }
