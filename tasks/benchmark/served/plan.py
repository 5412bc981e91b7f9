"""Which runs a recipe asks for: every engine without a draft, with it in each setting, and with its other drafters."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.benchmarking import BenchmarkRecipe, EngineSpec
from tasks.artifacts.artifact import Shards
from tasks.benchmark.served.passes import Run


def runs_of(recipe: BenchmarkRecipe, engine: EngineSpec) -> list[Run]:
    """The runs of one engine, the one without a draft first."""
    runs = []
    if recipe.measure.without_draft and (not engine.url or engine.plain_url):
        runs.append(Run(engine=engine.engine, drafter="none"))
    chains = [one for one in recipe.measure.speculation if one.top_k == 1]
    for baseline in engine.baselines:
        runs += [Run(engine=engine.engine, drafter=baseline, speculation=one) for one in chains]
    return runs + [
        Run(engine=engine.engine, drafter="draft", speculation=one)
        for one in recipe.measure.speculation
        if one.top_k == 1 or engine.has_trees
    ]


def reference_run(runs: Sequence[Shards]) -> Shards | None:
    """The run on whose greedy answers engines are compared: our own loop's, else the first with greedy answers."""
    greedy = [run for run in runs if 0.0 in run.table("served")["temperature"].to_pylist()]
    return min(greedy, key=lambda run: not run.facts["run"].startswith("transformers"), default=None)
