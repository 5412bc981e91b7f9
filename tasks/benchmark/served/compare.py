"""A benchmark against an earlier one: each place with its difference, prompts in pairs, and what to think of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from schemas.errors import StoreError
from schemas.served import SERVED, SERVED_PASS
from tasks.artifacts.artifact import Shards
from tasks.artifacts.find import find_artifact
from tasks.artifacts.task import artifact_task, workspace
from tasks.benchmark.served.figures import Place, Row

Verdict = Literal["better", "worse", "same"]


@dataclass(frozen=True)
class Change:
    """One place against the baseline.

    Attributes:
        prompts: that both measured; only these are compared.
        before: the baseline's tokens per verify step on them.
        after: this benchmark's.
        low: lower end of the 95 % interval of the paired difference, by bootstrap over prompts.
        high: its upper end.
        verdict: worse only if the whole interval is below minus the smallest loss that counts.
    """

    place: Place
    prompts: int
    before: float
    after: float
    low: float
    high: float
    verdict: Verdict

    @property
    def difference(self) -> float:
        """Tokens per verify step gained."""
        return self.after - self.before


@artifact_task(version="1")
def collect_benchmark(runs: list[Shards]) -> Shards:
    """All answers and passes of a benchmark as one artifact, parts "served" and "passes": a baseline for later ones."""
    space = workspace()
    served = pa.concat_tables([run.table("served") for run in runs])
    passes = pa.concat_tables([run.table("passes") for run in runs])
    space.add_table("served", "served.parquet", served, SERVED)
    space.add_table("passes", "passes.parquet", passes, SERVED_PASS)
    return space.publish({"answers": served.num_rows, "runs": [run.facts["run"] for run in runs]})


def load_baseline(key: str) -> Shards:
    """An earlier benchmark.

    Raises:
        StoreError: there is none of this key.
    """
    artifact = find_artifact(key)
    if not isinstance(artifact, Shards) or not artifact.part("served"):
        raise StoreError(
            f"baseline.artifact is {key}, which is no benchmark: `python -m tasks.artifacts ls --step "
            "collect_benchmark` lists them"
        )
    return artifact


def compare(
    rows: Iterable[Row], baseline: Iterable[Row], smallest_loss: float, resamples: int, seed: int
) -> list[Change]:
    """Every place with a drafter that both have, with at least one prompt that both have."""
    ours, theirs = _counted(rows), _counted(baseline)
    changes = []
    for place in sorted(set(ours) & set(theirs), key=lambda place: place.order):
        shared = sorted(set(ours[place]) & set(theirs[place]))
        if shared:
            pairs = np.array([(*ours[place][name], *theirs[place][name]) for name in shared], dtype=float)
            changes.append(_change(place, pairs, smallest_loss, resamples, seed))
    return changes


def _change(place: Place, pairs: np.ndarray, smallest_loss: float, resamples: int, seed: int) -> Change:
    count = len(pairs)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    sums = times @ pairs
    sums = sums[(sums[:, 1] > 0) & (sums[:, 3] > 0)]
    low, high = math.nan, math.nan
    if len(sums):
        low, high = np.percentile(sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3], [2.5, 97.5]).tolist()
    total = pairs.sum(axis=0)
    verdict: Verdict = "worse" if high < -smallest_loss else "better" if low > 0 else "same"
    return Change(place, count, 1 + total[2] / total[3], 1 + total[0] / total[1], low, high, verdict)


def _counted(rows: Iterable[Row]) -> dict[Place, dict[str, Sequence[int]]]:
    found: dict[Place, dict[str, Sequence[int]]] = {}
    for row in rows:
        if row["steps"] and row["verify_steps"]:
            found.setdefault(Place.of(row), {})[row["prompt_id"]] = (row["accepted"], row["verify_steps"])
    return found
