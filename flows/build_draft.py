"""`build_draft`: the whole way from prompts to a measured draft. Wiring only; each step is a cached task in tasks/.

python -m flows.build_draft deployments/recipes/quickstart.yaml

No postponed annotations here: Prefect loads this file under another name and must still resolve the parameter's type.
"""

from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.dataset import make_dataset
from flows.session import begin
from flows.steps import Steps
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.artifacts.serializer import ParquetSerializer
from tasks.benchmark.task import measure_acceptance
from tasks.corpus.task import build_vocabulary
from tasks.export.task import export_draft
from tasks.extract.task import extract_states, probe_target, require_space_for_states
from tasks.report.task import report_run
from tasks.train.task import initialise_draft, train_draft


@flow(
    name="build_draft",
    flow_run_name="{recipe.name}",
    task_runner=cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner()),
    persist_result=False,
    result_serializer=ParquetSerializer(),  # Prefect stores a failed flow's exception even so
)
def build_draft(recipe: Recipe) -> None:
    """Prompts to a measured EAGLE-3 draft.

    Args:
        recipe: everything the run depends on.
    """
    store = begin()
    steps = Steps(recipe.name)
    made = make_dataset(steps, store, recipe)
    target, prompts, corpus = made.target, made.prompts, made.corpus
    vocabulary, states = _vocabulary_and_states(steps, recipe, target, prompts, corpus)
    trained = _train(steps, recipe, target, vocabulary, states, prompts)
    report_run(store, recipe, steps.finished(), trained.result())


def _vocabulary_and_states(
    steps: Steps, recipe: Recipe, target: Shards, prompts: Shards, corpus: Shards
) -> tuple[PrefectFuture[Shards], list[PrefectFuture[Shards]]]:
    """The draft vocabulary beside the hidden states, which are extracted once the probe has proven the wiring."""
    vocabulary = steps.submit(build_vocabulary, "vocabulary", target=target, corpus=corpus, spec=recipe.vocabulary)
    shared = {"target": target, "spec": recipe.extraction, "target_spec": recipe.target, "compute": recipe.compute}
    probe = steps.submit(probe_target, "probe", prompts=prompts.split("train")[0], **shared)
    probe.result()
    require_space_for_states(corpus=corpus, **shared)
    states = [
        steps.submit(extract_states, f"extract {shard.label}", corpus=shard, **shared)
        for shard in corpus.split("corpus")
    ]
    return vocabulary, states


def _train(
    steps: Steps,
    recipe: Recipe,
    target: Shards,
    vocabulary: PrefectFuture[Shards],
    states: list[PrefectFuture[Shards]],
    prompts: Shards,
) -> PrefectFuture[Shards]:
    """Train, export and measure; the baselines are measured while the draft trains."""
    shared = {
        "target": target,
        "vocabulary": vocabulary,
        "states": states,
        "seed": recipe.seed,
        "target_spec": recipe.target,
        "compute": recipe.compute,
    }
    initial = steps.submit(initialise_draft, "initialise", spec=recipe.draft, **shared)
    trained = steps.submit(train_draft, "train", initial=initial, spec=recipe.training, **shared)
    if "untrained" in recipe.benchmark.baselines:
        untrained = steps.submit(export_draft, "export untrained", draft=initial)
        _measure(steps, recipe, target, "untrained", untrained, prompts)
    _measure(steps, recipe, target, "none", None, prompts)
    if "ngram" in recipe.benchmark.baselines:
        _measure(steps, recipe, target, "ngram", None, prompts)
    exported = steps.submit(export_draft, "export trained", draft=trained)
    _measure(steps, recipe, target, "trained", exported, prompts)
    return trained


def _measure(
    steps: Steps,
    recipe: Recipe,
    target: Shards,
    drafter: str,
    draft: PrefectFuture[Shards] | None,
    prompts: Shards,
) -> None:
    for shard in prompts.split("benchmark"):
        steps.submit(
            measure_acceptance,
            f"benchmark {drafter} {shard.label}",
            target=target,
            draft=draft,
            prompts=shard,
            drafter=drafter,
            spec=recipe.benchmark,
            seed=recipe.seed,
            target_spec=recipe.target,
            compute=recipe.compute,
        )


if __name__ == "__main__":
    from flows.command_line import main

    main()
