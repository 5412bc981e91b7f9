"""`build_draft`: the whole way from prompts to a measured draft. Wiring only; each step is a cached task in tasks/.

python -m flows.build_draft deployments/recipes/quickstart.yaml

No postponed annotations here: Prefect loads this file under another name and must still resolve the parameter's type.
"""

from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture, wait
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.dataset import Dataset, make_dataset, prepared_target
from flows.session import begin
from flows.steps import Steps
from flows.warm_start import adopted_parent, check_draft, extraction_for, submit_first_weights, submit_vocabulary
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.artifacts.serializer import ParquetSerializer
from tasks.benchmark.task import measure_acceptance
from tasks.export.task import export_draft, export_layout
from tasks.extract.task import extract_states, planned_states, probe_target, require_space_for_states
from tasks.report.task import report_run
from tasks.states.launching import state_servers, stop_state_servers
from tasks.train.lost_mass import measure_lost_mass
from tasks.train.task import simulate_acceptance, train_draft

States = list[PrefectFuture[Shards]] | list[Shards]


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
    target = prepared_target(steps, recipe)
    parent = adopted_parent(steps, recipe, target)
    check_draft(recipe, target.facts, parent)
    made = make_dataset(steps, store, recipe, target)
    with state_servers():
        vocabulary, states = _vocabulary_and_states(steps, recipe, made, parent)
        trained = _train(steps, recipe, made, vocabulary, states, parent)
        steps.submit(
            simulate_acceptance,
            "simulate",
            target=made.target,
            draft=trained,
            states=states,
            corpus=made.corpus,
            spec=recipe.benchmark,
            seed=recipe.seed,
            target_spec=recipe.target,
            compute=recipe.compute,
        )
        report_run(store, recipe, steps.finished(), trained.result())


def _vocabulary_and_states(
    steps: Steps, recipe: Recipe, made: Dataset, parent: Shards | None
) -> tuple[PrefectFuture[Shards], States]:
    """The draft vocabulary beside the hidden states, which are extracted once the probe has proven the wiring.

    With a parent draft, the vocabulary is its own, and the states are those of the layers that feed it.
    """
    target, prompts, corpus = made.target, made.prompts, made.corpus
    vocabulary = submit_vocabulary(steps, recipe, target, corpus, parent)
    shared = {"target": target, "spec": recipe.extraction, "target_spec": recipe.target, "compute": recipe.compute}
    probe = steps.submit(probe_target, "probe", prompts=prompts.split("train")[0], **shared)
    rate = probe.result().measures.get("tokens_per_second", 0.0)
    shared["spec"] = extraction_for(steps, recipe, corpus, parent, shared)
    if recipe.extraction.online:
        return vocabulary, planned_states(target, corpus, shared["spec"])
    require_space_for_states(corpus=corpus, tokens_per_second=rate, **shared)
    states = [
        steps.submit(extract_states, f"extract {shard.label}", corpus=shard, **shared)
        for shard in corpus.split("corpus")
    ]
    if recipe.extraction.launch:  # a server goes before the draft is trained, which wants its memory
        wait(states)
        stop_state_servers()
    return vocabulary, states


def _train(
    steps: Steps,
    recipe: Recipe,
    made: Dataset,
    vocabulary: PrefectFuture[Shards],
    states: States,
    parent: Shards | None,
) -> PrefectFuture[Shards]:
    """Train, export and measure; the baselines are measured while the draft trains."""
    target, prompts = made.target, made.prompts
    shared = {
        "target": target,
        "vocabulary": vocabulary,
        "states": states,
        "seed": recipe.seed,
        "target_spec": recipe.target,
        "compute": recipe.compute,
    }
    exporting = {"target": target, "spec": recipe.export}
    initial = submit_first_weights(steps, recipe, parent, shared)
    trained = steps.submit(train_draft, "train", initial=initial, spec=recipe.training, **shared)
    if "untrained" in recipe.benchmark.baselines:
        untrained = steps.submit(export_draft, "export untrained", draft=initial, **exporting)
        _measure(steps, recipe, target, "untrained", untrained, prompts)
    if not (recipe.extraction.teacher_top_k or recipe.extraction.online):  # it is read off the last states
        steps.submit(
            measure_lost_mass,
            "lost-mass",
            **{name: shared[name] for name in ("target", "vocabulary", "states", "target_spec", "compute")},
            corpus=made.corpus,
        )
    _measure(steps, recipe, target, "none", None, prompts)
    if "ngram" in recipe.benchmark.baselines:
        _measure(steps, recipe, target, "ngram", None, prompts)
    exported = steps.submit(export_draft, "export trained", draft=trained, **exporting)
    for layout in recipe.export.layouts:
        steps.submit(export_layout, f"export {layout}", exported=exported, target=target, layout=layout)
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
