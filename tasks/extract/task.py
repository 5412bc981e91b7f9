"""The tasks that extract the target's hidden states, one shard of sequences per run, and that probe them beforehand."""

from __future__ import annotations

import logging
import time
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import torch

from schemas.corpus import HIDDEN_STATES, PROBE
from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, peek, workspace
from tasks.extract.probe import PROMPTS, TOKENS, probe, refuse_failed
from tasks.extract.server_probe import probe_server
from tasks.extract.states import extracted, forecast_bytes
from tasks.formats.format import Fault
from tasks.progress import progress
from tasks.states.opening import open_source
from tasks.states.source import Asked, StateSource, aux_layers
from tasks.target.model import load_target
from tasks.target.parts import load_head_parts
from tasks.target.rendering import Renderer, row_request

log = logging.getLogger("eyas.extract")


@artifact_task(version="2", exclude=("target_spec", "compute"))
def extract_states(
    target: Shards, corpus: Shards, spec: ExtractionSpec, target_spec: TargetSpec, compute: ComputeSpec
) -> Shards:
    """The hidden states of one shard of sequences: part "hidden_states", one sequence per row group.

    Raises:
        ProbeFailed: names a sequence whose states are not finite, or not one per id.
        StoreError: the states would not fit on the disk, or those of a sequence in a file.
        EngineError: a server fails, or does not give what was asked for.
    """
    torch.set_num_threads(compute.threads_per_worker)
    table = pa.concat_tables(corpus.tables("corpus"))
    hidden_size = target.facts["hidden_size"]
    needed = forecast_bytes(table, hidden_size, spec)
    require_space(needed, f"extracting the hidden states of {table.num_rows} sequences")
    source = open_source(target, target_spec, spec)
    tokens = sum(len(ids) for ids in table["token_ids"])
    lengths = [len(ids) for ids in table["token_ids"]]
    space = workspace()
    started = time.perf_counter()
    with (
        progress("extract", tokens, "tokens") as bar,
        space.stream_table("hidden_states", "hidden_states.parquet", HIDDEN_STATES, compression="none") as write,
    ):
        for piece in extracted(source, table, hidden_size, spec):
            write(piece)
            bar.advance(sum(lengths[place] for place in piece["place"].to_pylist()))
    seconds = time.perf_counter() - started
    facts = {
        "aux_layers": aux_layers(spec, target.facts["num_layers"]),
        "hidden_size": hidden_size,
        "vocab_size": target.facts["vocab_size"],
        "dtype": spec.storage,
        "sequences": table.num_rows,
        "tokens": tokens,
    }
    return space.publish(facts, {"extract_seconds": seconds, "tokens_per_second": tokens / max(seconds, 1e-9)})


def planned_states(target: Shards, corpus: Shards, spec: ExtractionSpec) -> list[Shards]:
    """What stands for the hidden states of each shard of the corpus where nothing is stored."""
    facts = {
        "aux_layers": aux_layers(spec, target.facts["num_layers"]),
        "hidden_size": target.facts["hidden_size"],
        "vocab_size": target.facts["vocab_size"],
        "online": spec.model_dump(mode="json", exclude={"concurrency"}),
    }
    return [Shards(shards=shard.shards, facts=facts) for shard in corpus.split("corpus")]


def require_space_for_states(
    target: Shards,
    corpus: Shards,
    spec: ExtractionSpec,
    target_spec: TargetSpec,
    compute: ComputeSpec,
    tokens_per_second: float = 0,
) -> None:
    """Say what extraction will take, and refuse to begin when the states of the shards that are missing do not fit.

    Args:
        tokens_per_second: as the probe measured it; 0 where it is not known.

    Raises:
        StoreError: gives the forecast and the free space, or names a sequence that is too long for a file.
    """
    inputs = {"target": target, "spec": spec, "target_spec": target_spec, "compute": compute}
    sequences = tokens = needed = 0
    for shard in corpus.split("corpus"):
        if peek(extract_states, corpus=shard, **inputs) is None:
            for table in shard.tables("corpus"):
                sequences += table.num_rows
                tokens += sum(len(ids) for ids in table["token_ids"])
                needed += forecast_bytes(table, target.facts["hidden_size"], spec)
    if sequences:
        hours = tokens / tokens_per_second / 3600 if tokens_per_second else 0
        lasting = f", about {hours:,.2f} hours at the probe's rate" if hours else ""
        log.info(
            "extraction: %s sequences, %s tokens, %s MiB (%s bytes per token)%s",
            *(f"{sequences:,}", f"{tokens:,}", f"{needed / 2**20:,.0f}", f"{needed / tokens:,.0f}", lasting),
        )
    require_space(needed, f"extracting the hidden states of {sequences:,} sequences")


@artifact_task(version="1", exclude=("target_spec", "compute"))
def probe_target(
    target: Shards, prompts: Shards, spec: ExtractionSpec, target_spec: TargetSpec, compute: ComputeSpec
) -> Rows:
    """Check captured states on a few training prompts; a table of PROBE. Measures: tokens_per_second.

    Raises:
        ProbeFailed: gives the figures.
        EngineError: a server fails, or does not give what was asked for.
    """
    torch.set_num_threads(compute.threads_per_worker)
    prompt_ids = probe_prompts(Renderer.of(target, target_spec), next(prompts.tables("train")))
    source = open_source(target, target_spec, spec)
    if spec.is_served:
        reference = load_target(target, target_spec) if spec.reference == "target" else None
        parts, dtype = load_head_parts(target, target_spec), target.facts["dtype"]
        checks = probe_server(source, reference, parts, prompt_ids, dtype, spec)
    else:
        checks = probe(load_target(target, target_spec), prompt_ids, spec)
    refuse_failed(checks)
    rows = [{"check": check.check, "value": check.value, "limit": check.limit} for check in checks]
    rate = {"tokens_per_second": _rate(source, prompt_ids)}
    return Rows(contract=PROBE.name, table=PROBE.table(rows, "probe"), measures=rate)


def _rate(source: StateSource, prompts: list[list[int]]) -> float:
    """Tokens per second of short sequences, one batch or as many requests as the recipe allows."""
    started = time.perf_counter()
    for _ in source.states([Asked("probe", ids, len(ids) - 1) for ids in prompts]):
        pass
    return sum(map(len, prompts)) / (time.perf_counter() - started)


def probe_prompts(renderer: Renderer, prompts: pa.Table) -> list[list[int]]:
    """The first few conversations' first turns that fit, as ids.

    Raises:
        ProbeFailed: none fits.
    """
    first_turns = prompts.filter(pc.field("turn") == 0)
    rendered = (renderer.ids(row_request(row), TOKENS) for row in first_turns.to_pylist())
    found = list(islice((list(ids) for ids in rendered if not isinstance(ids, Fault)), PROMPTS))
    if not found:
        raise ProbeFailed(
            f"none of the {first_turns.num_rows} prompts fits in the target's context, so nothing was probed"
        )
    return found
