"""Makes the report of a finished run: files in <store>/reports/<recipe name>, tables on the terminal, both in Prefect.

Not an artifact task: a report is read by people, and names artifacts instead of being one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from prefect.context import FlowRunContext
from rich.console import Console

from schemas.measures import ACCEPTANCE
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_bytes
from tasks.benchmark.statistics import Measured, measure
from tasks.report.card import write_release
from tasks.report.markdown import render_report
from tasks.report.plots import write_plots
from tasks.report.publish import publish, publish_steps
from tasks.report.steps import Finished, StepRow
from tasks.report.summary import closing_line, print_summary, steps_table, summary_console

CURVE, ACCEPTANCES = "curve", "acceptance"  # parts of the training's and the benchmark's artifacts


@dataclass(frozen=True)
class Report:
    """Where a report lies, and its figures."""

    markdown: Path
    plots: dict[str, Path]
    measured: Measured


def report_run(
    store: Path, recipe: Recipe, finished: Sequence[Finished], trained: Shards, console: Console | None = None
) -> Report:
    """Write the report, print the summary, and publish both to Prefect when called in a flow run.

    Args:
        store: the store's root.
        recipe: what was run.
        finished: every task run, in order; acceptance is read from those with a part "acceptance".
        trained: the training's artifact, for its curve.
        console: where the tables go; the terminal by default.

    Raises:
        ArtifactInvalid: a shard of curve or acceptance is missing or altered.
    """
    rows = [StepRow.of(one) for one in finished]
    acceptance = [
        table
        for row in rows
        if isinstance(row.artifact, Shards) and row.artifact.part(ACCEPTANCES)
        for table in row.artifact.tables(ACCEPTANCES)
    ]
    report = make_report(
        store,
        recipe,
        rows,
        pa.concat_tables(acceptance) if acceptance else ACCEPTANCE.arrow.empty_table(),
        trained.table(CURVE),
    )
    console = console or summary_console()
    print_summary(rows, report.measured, console)
    console.print(f"Report: {report.markdown}", soft_wrap=True)
    if released := write_release(store / "reports" / recipe.name / "draft", recipe, rows, report.measured):
        console.print(f"Draft: {released}", soft_wrap=True)
    if FlowRunContext.get() is not None:
        text = render_report(recipe.name, introduction(recipe), rows, report.measured, plots=False)
        publish(recipe.name, text, rows, report.measured, report.plots)
    return report


def report_steps(name: str, finished: Sequence[Finished], console: Console | None = None) -> None:
    """Print what each step did, and publish it to Prefect when called in a flow run.

    Args:
        name: the recipe's.
        finished: every task run, in order.
        console: where the table goes; the terminal by default.
    """
    rows = [StepRow.of(one) for one in finished]
    console = console or summary_console()
    console.print(steps_table(rows))
    console.print(closing_line(rows))
    if FlowRunContext.get() is not None:
        publish_steps(name, rows)


def make_report(store: Path, recipe: Recipe, rows: Sequence[StepRow], acceptance: pa.Table, curve: pa.Table) -> Report:
    """Write report.md and the plots into <store>/reports/<recipe name>.

    Args:
        store: the store's root.
        recipe: what was run.
        rows: every artifact of the run.
        acceptance: all ACCEPTANCE rows.
        curve: TRAINING_CURVE rows.
    """
    folder = store / "reports" / recipe.name
    measured = measure(acceptance, recipe.benchmark.bootstrap, recipe.seed)
    plots = write_plots(folder, measured, curve)
    path = folder / "report.md"
    write_bytes(path, render_report(recipe.name, introduction(recipe), rows, measured).encode())
    return Report(path, plots, measured)


def introduction(recipe: Recipe) -> str:
    """What was run, in two sentences."""
    temperatures = ", ".join(f"{t:g}" for t in recipe.benchmark.temperatures)
    spec = recipe.benchmark
    return (
        f"An EAGLE-3 draft for `{recipe.target.model}`, seed {recipe.seed}, recipe `{recipe.fingerprint()}`. "
        f"Measured with chains of {spec.chain} drafted tokens, up to {spec.max_tokens} new tokens per prompt, "
        f"at temperature {temperatures}."
    )
