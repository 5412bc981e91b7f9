"""The report of a benchmark in engines: files in <store>/reports/<recipe name>, tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from schemas.benchmarking import BenchmarkRecipe
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_bytes
from tasks.benchmark.served.figures import Served, served_figures
from tasks.report.markdown import grid
from tasks.report.served_cells import HEADINGS, SHORT, TEXT_COLUMNS, figure_cells
from tasks.report.summary import summary_console


@dataclass(frozen=True)
class BenchmarkReport:
    """Where a report lies, and its figures."""

    markdown: Path
    figures: Served


def report_benchmark(
    store: Path,
    recipe: BenchmarkRecipe,
    runs: Sequence[Shards],
    failures: Mapping[str, Exception],
    console: Console | None = None,
) -> BenchmarkReport:
    """Write the report and print its table.

    Args:
        store: the store's root.
        recipe: what was run.
        runs: results of `measure_run`.
        failures: why other runs have none, by their label.
        console: where the table goes; the terminal by default.

    Raises:
        ArtifactInvalid: a shard is missing or altered.
    """
    answers = pa.concat_tables([run.table("served") for run in runs])
    passes = pa.concat_tables([run.table("passes") for run in runs])
    spec = recipe.measure
    figures = served_figures(answers, passes, spec.context_edges, spec.bootstrap, recipe.seed)
    path = store / "reports" / recipe.name / "benchmark.md"
    write_bytes(path, render(recipe, figures, failures).encode())
    console = console or summary_console()
    console.print(_table(figures))
    console.print(f"Report: {path}", soft_wrap=True)
    return BenchmarkReport(path, figures)


def render(recipe: BenchmarkRecipe, figures: Served, failures: Mapping[str, Exception]) -> str:
    """The report in Markdown."""
    sections = [
        f"# {recipe.name}",
        f"The draft `{recipe.draft.source}` with `{recipe.target.model}`, seed {recipe.seed}, recipe "
        f"`{recipe.fingerprint()}`. Acceptance length is 1 + accepted drafts per verify step, from each engine's own "
        "counters; 95 % intervals are bootstraps over prompts.",
        grid(HEADINGS, map(figure_cells, figures.overall)),
        "## By dataset",
        grid(("dataset", *HEADINGS), ((one.dataset, *figure_cells(one)) for one in figures.by_dataset)),
        "## By length of the prompt",
        grid(("tokens", *HEADINGS), ((one.bucket, *figure_cells(one)) for one in figures.by_context)),
        *(["## Runs that failed", "\n".join(f"- {run}: {why}" for run, why in failures.items())] if failures else []),
    ]
    return "\n\n".join(sections) + "\n"


def _table(figures: Served) -> Table:
    table = Table(title="In engines", title_justify="left", header_style="bold")
    for index in SHORT:
        table.add_column(HEADINGS[index], justify="left" if index in TEXT_COLUMNS else "right")
    for one in figures.overall:
        cells = figure_cells(one)
        table.add_row(*(cells[index] for index in SHORT), style="bold" if one.place.drafter == "draft" else None)
    return table
