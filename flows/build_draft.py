"""`build_draft`: the whole way from prompts to a measured draft. Wiring only; each step is a cached task in tasks/.

python -m flows.build_draft deployments/recipes/quickstart.yaml

No postponed annotations here: Prefect loads this file under another name and must still resolve the parameter's type.
"""

from pathlib import Path
from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.session import begin
from flows.steps import Steps
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.artifacts.serializer import ParquetSerializer
from tasks.benchmark.task import measure_acceptance
from tasks.corpus.task import build_corpus, build_vocabulary
from tasks.export.task import export_draft
from tasks.extract.task import extract_states, probe_target, require_space_for_states
from tasks.generate.serve.stopping import request_stop
from tasks.generate.served import generate_served
from tasks.generate.task import generate_answers
from tasks.prompts.locate import locate_sources
from tasks.prompts.task import gather_prompts
from tasks.reconstruct.task import reconstruct_sequences
from tasks.report.audit import report_audit
from tasks.report.datasets import report_datasets
from tasks.report.task import report_run
from tasks.target.task import locate_target, prepare_target
from tasks.train.task import initialise_draft, train_draft
from tasks.validate.audit import AuditFailed
from tasks.validate.task import audit_sequences

_CLOSE_SECONDS = 10  # for journals to be closed


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
    target = steps.submit(prepare_target, "target", spec=recipe.target, sources=locate_target(recipe.target)).result()
    recipe.check_target(target.facts)
    prompts = steps.submit(
        gather_prompts,
        "prompts",
        datasets=recipe.datasets,
        sources=locate_sources(recipe.datasets),
        shard_prompts=recipe.generation.shard_prompts,
        benchmark_shard_prompts=recipe.benchmark.shard_prompts,
    ).result()

    recipe.check_prompts(prompts.rows("train"))
    audited = _answer_and_audit(steps, store, recipe, target, prompts)
    corpus = steps.submit(build_corpus, "corpus", audited=audited, spec=recipe.corpus, seed=recipe.seed).result()
    vocabulary, states = _vocabulary_and_states(steps, recipe, target, prompts, corpus)
    trained = _train(steps, recipe, target, vocabulary, states, prompts)
    report_run(store, recipe, steps.finished(), trained.result())


def _answer_and_audit(steps: Steps, store: Path, recipe: Recipe, target: Shards, prompts: Shards) -> Shards:
    """Answers, exact token ids and the audit with its report."""
    if recipe.generation.is_served:
        answers, sequences = _served(steps, recipe, target, prompts)
    else:
        answers, sequences = _embedded(steps, recipe, target, prompts)
    audited = steps.submit(
        audit_sequences,
        "validate",
        target=target,
        answers=answers,
        sequences=sequences,
        prompts=prompts,
        spec=recipe.audit,
        reconstruction=recipe.reconstruction,
        target_spec=recipe.target,
    )
    try:
        steps.finished()  # what depends on a failed task would only say that it never ran
    except AuditFailed as failure:
        report_audit(store, recipe, failure, [sequence.result() for sequence in sequences], target)
        raise
    report_audit(store, recipe, audited.result(), [sequence.result() for sequence in sequences], target)
    return audited.result()


def _embedded(
    steps: Steps, recipe: Recipe, target: Shards, prompts: Shards
) -> tuple[list[PrefectFuture[Shards]], list[PrefectFuture[Shards]]]:
    """Answers and sequences of this process; shards of prompts go their way side by side."""
    shards = prompts.split("train")
    answers = [
        steps.submit(
            generate_answers,
            f"generate {shard.label}",
            prompts=shard,
            spec=recipe.generation,
            markers_in_prompt=recipe.reconstruction.markers_in_prompt,
            seed=recipe.seed,
            target=target,
            target_spec=recipe.target,
            compute=recipe.compute,
        )
        for shard in shards
    ]
    sequences = [
        _reconstruct(steps, recipe, target, f"reconstruct {shard.label}", answer)
        for shard, answer in zip(shards, answers, strict=True)
    ]
    return answers, sequences


def _served(
    steps: Steps, recipe: Recipe, target: Shards, prompts: Shards
) -> tuple[list[Shards], list[PrefectFuture[Shards]]]:
    """Answers and sequences of servers: one task asks all, and one reads the counting rules off all answers."""
    generated = steps.submit(
        generate_served,
        "generate served",
        target=target,
        prompts=Shards(shards=tuple(prompts.part("train"))),
        spec=recipe.generation,
        partitions={dataset.name: dataset.partition for dataset in recipe.datasets},
        markers_in_prompt=recipe.reconstruction.markers_in_prompt,
        seed=recipe.seed,
        target_spec=recipe.target,
        run=recipe.name,
    )
    try:
        result = generated.result()
    except BaseException:
        if request_stop():  # the flow run is cancelled: its task would ask on, and what is in flight is paid for
            generated.wait(recipe.generation.serving.grace_seconds + _CLOSE_SECONDS)
        raise
    report_datasets(recipe.name, result)
    # without the ledger, whose times and retries are no part of what was answered
    answers = Shards(shards=(*result.part("answers"), *result.part("quarantine")), facts=result.facts)
    return [answers], [_reconstruct(steps, recipe, target, "reconstruct served", answers)]


def _reconstruct(
    steps: Steps, recipe: Recipe, target: Shards, label: str, answers: Shards | PrefectFuture[Shards]
) -> PrefectFuture[Shards]:
    return steps.submit(
        reconstruct_sequences,
        label,
        target=target,
        answers=answers,
        spec=recipe.reconstruction,
        target_spec=recipe.target,
    )


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
