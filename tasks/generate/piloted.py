"""The task that asks a pilot's prompts of servers that cost money, and says what the rest will take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.forecast import FORECAST
from schemas.generation import GenerationSpec
from schemas.sections import TargetSpec
from schemas.serving import PriceSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.files import write_bytes
from tasks.artifacts.store import store_root
from tasks.artifacts.task import Workspace, artifact_task, workspace
from tasks.generate.budget import Budget, Caps, caps_of
from tasks.generate.dispatch import Partition, dispatch
from tasks.generate.ledger import read_ledger
from tasks.generate.pilot import Left, forecast_table, left_of, pilot_of, sample_of, speeds_of, worst_request
from tasks.generate.serve.job import Job
from tasks.generate.served import WAIT_SECONDS, prepared, stores_of
from tasks.generate.status import PILOT

_BASELINE = "committed-before.json"


@artifact_task(version="1", exclude=("target_spec", "run"))
def forecast_served(
    target: Shards,
    prompts: Shards,
    spec: GenerationSpec,
    partitions: dict[str, str],
    markers_in_prompt: str,
    seed: int,
    target_spec: TargetSpec,
    run: str,
    price: PriceSpec,
    pilot_prompts: int,
    attempt: int,
) -> Rows:
    """Ask the pilot's prompts, unless they are paid for, and forecast the rest; contract FORECAST.

    Facts: `baseline_nanousd`, what the run had committed before the pilot; `committed_nanousd`, after it;
    `worst_request_nanousd`, what the dearest of the requests that are left can cost.

    Args:
        target, prompts, spec, partitions, markers_in_prompt, seed, target_spec, run: as `generate_served` takes them.
        price: of the recipe.
        pilot_prompts: per dataset.
        attempt: how many forecasts of the same there were before: what was expected may have been spent since.

    Raises:
        BudgetExhausted, RunStopped, EngineError: as `generate_served`.
    """
    with prepared(target, prompts, spec, partitions, markers_in_prompt, seed, target_spec) as (job, parts):
        return make_forecast(job, parts, store_root(), run, workspace(), spec, pilot_prompts)


def make_forecast(
    job: Job,
    partitions: Sequence[Partition],
    store: Path,
    run: str,
    space: Workspace,
    spec: GenerationSpec,
    pilot_prompts: int,
) -> Rows:
    """Ask the pilot's prompts and forecast the rest."""
    with stores_of(store, job, run, caps_of(spec.serving.budget)) as stores:
        baseline = _baseline(space, stores.budget)
        pilot = pilot_of(partitions, pilot_prompts)
        asyncio.run(dispatch(job, pilot, stores, PILOT))
        left = left_of(job, partitions, stores.paid)
        samples = sample_of(job, pilot, stores.paid)
        committed = _committed(stores.budget)
    speeds = speeds_of(read_ledger(store / "ledger" / run), _in_flight(partitions, left))
    table = forecast_table(job, left, samples, speeds, job.seed)
    facts = {
        "baseline_nanousd": baseline,
        "committed_nanousd": committed,
        "worst_request_nanousd": worst_request(job, left),
    }
    return Rows(contract=FORECAST.name, table=table, facts=facts)


def committed_nanousd(store: Path, run: str) -> int:
    """What a run has spent, and what it has reserved for attempts whose bill is not known."""
    with Budget(store / "budget" / run, Caps(), wait_seconds=WAIT_SECONDS) as budget:
        return _committed(budget)


def _committed(budget: Budget) -> int:
    totals = budget.totals()
    return totals.settled_nanousd + totals.reserved_nanousd


def _baseline(space: Workspace, budget: Budget) -> int:
    """What was committed before the pilot began, also if it was killed and goes on."""
    path = space.path(_BASELINE)
    if not path.exists():
        write_bytes(path, json.dumps(_committed(budget)).encode())
    return int(json.loads(path.read_bytes()))


def _in_flight(partitions: Sequence[Partition], left: Mapping[str, Left]) -> int:
    """Requests at a time, when what is left is asked."""
    most = max((one.spec.concurrency for one in partitions if one.bounds), default=1)
    return min(most, max(1, sum(len(one.prompt_tokens) for one in left.values())))
