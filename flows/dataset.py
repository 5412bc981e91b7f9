"""From prompts to an audited corpus, as `refresh_dataset` does it and `build_draft` begins. Wiring only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect.futures import PrefectFuture

from flows.approval import approved_cap
from flows.steps import Steps, in_order
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.corpus.task import build_corpus
from tasks.generate.served import generate_served
from tasks.generate.task import generate_answers
from tasks.prompts.locate import locate_sources
from tasks.prompts.task import gather_prompts
from tasks.reconstruct.task import reconstruct_sequences
from tasks.report.audit import report_audit
from tasks.report.datasets import report_datasets
from tasks.target.task import locate_target, prepare_target
from tasks.validate.audit import AuditFailed
from tasks.validate.task import audit_sequences


@dataclass(frozen=True)
class Dataset:
    """What a draft is trained from."""

    target: Shards
    prompts: Shards
    corpus: Shards


def prepared_target(steps: Steps, recipe: Recipe) -> Shards:
    """The target, which the recipe fits.

    Raises:
        EyasError: it cannot be used, or the recipe contradicts it.
    """
    target = steps.submit(prepare_target, "target", spec=recipe.target, sources=locate_target(recipe.target)).result()
    recipe.check_target(target.facts)
    return target


def make_dataset(steps: Steps, store: Path, recipe: Recipe, target: Shards) -> Dataset:
    """Prompts, answers, exact token ids, audit and corpus; what is there already is neither made nor paid for again.

    Raises:
        EyasError: a step failed.
    """
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
    return Dataset(target, prompts, corpus)


def _answer_and_audit(steps: Steps, store: Path, recipe: Recipe, target: Shards, prompts: Shards) -> Shards:
    """Answers, exact token ids and the audit with its report."""
    if recipe.generation.is_served:
        answers, sequences = _served(steps, store, recipe, target, prompts)
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
    steps: Steps, store: Path, recipe: Recipe, target: Shards, prompts: Shards
) -> tuple[list[Shards], list[PrefectFuture[Shards]]]:
    """Answers and sequences of servers: one task asks all, and one reads the counting rules off all answers.

    Where answers cost money, a pilot and a person's approval come first.
    """
    asked = {
        "target": target,
        "prompts": Shards(shards=tuple(prompts.part("train"))),
        "spec": recipe.generation,
        "partitions": {dataset.name: dataset.partition for dataset in recipe.datasets},
        "markers_in_prompt": recipe.reconstruction.markers_in_prompt,
        "seed": recipe.seed,
        "target_spec": recipe.target,
        "run": recipe.name,
    }
    cap = approved_cap(steps, store, recipe, asked)
    future = steps.submit(generate_served, "generate served", **asked, approved_nanousd=cap)
    result = in_order(future, recipe.generation.serving.grace_seconds)
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
