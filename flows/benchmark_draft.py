"""`benchmark_draft`: any draft with any target in real engines. Wiring only; each step is a cached task in tasks/.

python -m flows.benchmark_draft deployments/benchmarks/smollm2.yaml

No postponed annotations here: Prefect loads this file under another name and must still resolve the parameter's type.
"""

from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.session import begin
from flows.steps import Steps
from schemas.benchmarking import BenchmarkRecipe, EngineSpec
from schemas.errors import EngineError, EyasError, GateFailed, TargetError
from tasks.artifacts.artifact import Shards
from tasks.artifacts.serializer import ParquetSerializer
from tasks.benchmark.served.compare import collect_benchmark, load_baseline
from tasks.benchmark.served.draft import adopt_draft, locate_draft
from tasks.benchmark.served.findings import Findings, find
from tasks.benchmark.served.gguf import convert_draft, convert_target
from tasks.benchmark.served.lossless import judge_differences
from tasks.benchmark.served.passes import Run
from tasks.benchmark.served.plan import reference_run, runs_of
from tasks.benchmark.served.probes import probe_wiring
from tasks.benchmark.served.task import measure_run
from tasks.prompts.locate import locate_sources
from tasks.prompts.task import gather_prompts
from tasks.report.served import report_benchmark
from tasks.target.task import locate_target, prepare_target

_ONE_SHARD = 1_000_000  # prompts: their turns are asked level by level, so they stay together


@flow(
    name="benchmark_draft",
    flow_run_name="{recipe.name}",
    task_runner=cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner()),
    persist_result=False,
    result_serializer=ParquetSerializer(),  # Prefect stores a failed flow's exception even so
)
def benchmark_draft(recipe: BenchmarkRecipe) -> None:
    """What a draft saves in the engines that serve it, and whether it is served as it was trained.

    Args:
        recipe: everything the benchmark depends on.
    """
    store = begin()
    steps = Steps(recipe.name)
    baseline = load_baseline(recipe.baseline.artifact) if recipe.baseline.artifact else None
    target = steps.submit(prepare_target, "target", spec=recipe.target, sources=locate_target(recipe.target)).result()
    prompts = steps.submit(
        gather_prompts,
        "prompts",
        datasets=recipe.prompts,
        sources=locate_sources(recipe.prompts),
        shard_prompts=_ONE_SHARD,
        benchmark_shard_prompts=_ONE_SHARD,
    ).result()
    context = recipe.measure.context_length or target.facts["context"]
    draft = steps.submit(
        adopt_draft, "draft", files=locate_draft(recipe.draft), target=target, context=context
    ).result()
    runs, failures = _measure(steps, recipe, target, draft, Shards(shards=tuple(prompts.part("benchmark"))))
    if not runs:
        raise _failed(failures, 0)
    findings = _find(steps, recipe, target, draft, runs, baseline)
    report_benchmark(store, recipe, findings, failures)
    if failures:
        raise _failed(failures, len(runs))
    if closed := findings.closed(recipe):
        raise GateFailed("the draft is measured, but:\n" + "\n".join(f"- {reason}" for reason in closed))


def _measure(
    steps: Steps, recipe: BenchmarkRecipe, target: Shards, draft: Shards, prompts: Shards
) -> tuple[list[Shards], dict[str, EyasError]]:
    """All runs, one after another since each is timed, and why some failed."""
    done: list[Shards] = []
    failures: dict[str, EyasError] = {}
    for engine in recipe.engines:
        for run in runs_of(recipe, engine):
            try:
                done.append(_run(steps, recipe, engine, run, target, draft, prompts))
            except EyasError as exc:
                failures[run.label] = exc
    return done, failures


def _run(
    steps: Steps,
    recipe: BenchmarkRecipe,
    engine: EngineSpec,
    run: Run,
    target: Shards,
    draft: Shards,
    prompts: Shards,
) -> Shards:
    gguf = None
    used = draft if run.drafter == "draft" else None
    if run.engine == "llamacpp" and not engine.url:
        gguf = steps.submit(convert_target, "gguf target", target=target, target_spec=recipe.target).result()
        if used:
            converted = steps.submit(convert_draft, "gguf draft", draft=draft, target=target, target_spec=recipe.target)
            used = converted.result()
    return steps.submit(
        measure_run,
        f"benchmark {run.label}",
        target=target,
        draft=used,
        gguf=gguf,
        prompts=prompts,
        run=run,
        engine=engine,
        spec=recipe.measure,
        lossless=recipe.lossless,
        seed=recipe.seed,
        target_spec=recipe.target,
        compute=recipe.compute,
    ).result()


def _find(
    steps: Steps,
    recipe: BenchmarkRecipe,
    target: Shards,
    draft: Shards,
    runs: list[Shards],
    baseline: Shards | None,
) -> Findings:
    """What the runs say together; wirings are probed only where an engine's counts are not the foreseen ones."""
    shared = {"target": target, "target_spec": recipe.target, "compute": recipe.compute}
    collected = steps.submit(collect_benchmark, "collect", runs=runs).result()
    differences = steps.submit(
        judge_differences, "lossless", runs=runs, tolerance=recipe.lossless.tie_tolerance, **shared
    ).result()
    chain = next((one.steps for one in recipe.measure.speculation if one.top_k == 1), 0)
    reference = reference_run(runs)
    if not reference or not chain:
        return find(recipe, collected, runs, differences, None, None, baseline)
    wiring = {"draft": draft, "run": reference, "steps": chain, **shared}
    try:
        survivals = steps.submit(probe_wiring, "parity", probes=False, **wiring).result()
    except TargetError:  # it is too large for this machine: then engines are held against nothing
        return find(recipe, collected, runs, differences, None, None, baseline)
    findings = find(recipe, collected, runs, differences, survivals, None, baseline)
    if not findings.parity or not findings.parity.failed:
        return findings
    probes = steps.submit(probe_wiring, "parity probes", probes=True, **wiring).result()
    return find(recipe, collected, runs, differences, survivals, probes, baseline)


def _failed(failures: dict[str, EyasError], done: int) -> EngineError:
    told = "\n".join(f"- {label}: {failure}" for label, failure in failures.items())
    return EngineError(f"{len(failures)} of {len(failures) + done} runs failed; the others are kept:\n{told}")


if __name__ == "__main__":
    from flows.command_line import main_benchmark

    main_benchmark()
