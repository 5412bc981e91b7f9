"""The tasks that extract the target's hidden states, one shard of sequences per run, and that probe them beforehand."""

from __future__ import annotations

import time
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import torch

from schemas.corpus import HIDDEN_STATES, PROBE, STATE_BYTES
from schemas.errors import ProbeFailed
from schemas.sections import ComputeSpec, ExtractionSpec, TargetSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, peek, workspace
from tasks.extract.probe import PROMPTS, TOKENS, probe, refuse_failed
from tasks.extract.states import aux_layers, extract_table, forecast_bytes
from tasks.formats.format import Fault
from tasks.progress import progress
from tasks.target.model import load_target
from tasks.target.rendering import Renderer, row_request


@artifact_task(version="1", exclude=("target_spec", "compute"))
def extract_states(
    target: Shards, corpus: Shards, spec: ExtractionSpec, target_spec: TargetSpec, compute: ComputeSpec
) -> Shards:
    """The hidden states of one shard of sequences: part "hidden_states", in its order, one sequence per row group.

    Raises:
        ProbeFailed: names a sequence whose states are not finite.
        StoreError: the states would not fit on the disk.
    """
    torch.set_num_threads(compute.threads_per_worker)
    table = pa.concat_tables(corpus.tables("corpus"))
    hidden_size = target.facts["hidden_size"]
    needed = forecast_bytes(table, hidden_size)
    require_space(needed, f"extracting the hidden states of {table.num_rows} sequences")
    model = load_target(target, target_spec)
    tokens = sum(len(ids) for ids in table["token_ids"])
    started = time.perf_counter()
    with progress("extract", tokens, "tokens") as bar:
        states = extract_table(model, table, spec, bar.advance)
    seconds = time.perf_counter() - started
    space = workspace()
    space.add_table(
        "hidden_states", "hidden_states.parquet", states, HIDDEN_STATES, compression="none", rows_per_group=1
    )
    facts = {
        "aux_layers": aux_layers(spec, target.facts["num_layers"]),
        "hidden_size": hidden_size,
        "dtype": "bfloat16",
        "sequences": states.num_rows,
        "tokens": tokens,
    }
    return space.publish(facts, {"extract_seconds": seconds, "tokens_per_second": tokens / max(seconds, 1e-9)})


def require_space_for_states(
    target: Shards, corpus: Shards, spec: ExtractionSpec, target_spec: TargetSpec, compute: ComputeSpec
) -> None:
    """Refuse to begin extraction when the states of the shards that are still missing would not fit.

    Raises:
        StoreError: gives the forecast and the free space.
    """
    inputs = {"target": target, "spec": spec, "target_spec": target_spec, "compute": compute}
    shards = [(shard, shard.rows("corpus")) for shard in corpus.split("corpus")]
    missing = sum(rows for shard, rows in shards if peek(extract_states, corpus=shard, **inputs) is None)
    share = missing / max(sum(rows for _, rows in shards), 1)
    states_per_token = len(aux_layers(spec, target.facts["num_layers"])) + 1
    tokens = share * sum(corpus.facts["tokens"].values())
    needed = int(tokens * states_per_token * target.facts["hidden_size"] * STATE_BYTES)
    require_space(needed, f"extracting the hidden states of {missing:,} sequences")


@artifact_task(version="1", exclude=("target_spec", "compute"))
def probe_target(
    target: Shards, prompts: Shards, spec: ExtractionSpec, target_spec: TargetSpec, compute: ComputeSpec
) -> Rows:
    """Check captured states on a few training prompts; a table of PROBE.

    Raises:
        ProbeFailed: gives the figures.
    """
    torch.set_num_threads(compute.threads_per_worker)
    model = load_target(target, target_spec)
    rendered = probe_prompts(Renderer.of(target, target_spec), next(prompts.tables("train")))
    checks = probe(model, rendered, spec)
    refuse_failed(checks)
    rows = [{"check": check.check, "value": check.value, "limit": check.limit} for check in checks]
    return Rows(contract=PROBE.name, table=PROBE.table(rows, "probe"))


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
