"""The report of a benchmark in engines: page, Markdown, plots and history in <store>/reports/<recipe name>, tables on
the terminal, and the same in Prefect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext
from rich.console import Console
from rich.table import Table

from schemas.benchmarking import BenchmarkRecipe
from schemas.errors import ArtifactInvalid
from schemas.served import HISTORY
from tasks.artifacts.files import read_table, write_bytes, write_table
from tasks.benchmark.served.findings import Findings
from tasks.report.markdown import grid
from tasks.report.publish import artifact_key, publish_image
from tasks.report.served_cells import SHORT, Section, sections_of
from tasks.report.served_page import render_page
from tasks.report.served_plots import PLOTS, write_served_plots
from tasks.report.summary import summary_console


@dataclass(frozen=True)
class BenchmarkReport:
    """Where a report lies."""

    page: Path
    markdown: Path
    plots: dict[str, Path]


def report_benchmark(
    store: Path,
    recipe: BenchmarkRecipe,
    findings: Findings,
    failures: Mapping[str, Exception],
    console: Console | None = None,
) -> BenchmarkReport:
    """Write the report, print its first table, and publish it to Prefect when called in a flow run.

    Args:
        store: the store's root.
        recipe: what was run.
        findings: what came out.
        failures: why runs have no result, by their label.
        console: where the table goes; the terminal by default.
    """
    folder = store / "reports" / recipe.name
    plots = write_served_plots(folder, findings.figures, _history(folder / "history.parquet", findings))
    sections = sections_of(recipe, findings, failures)
    report = BenchmarkReport(folder / "benchmark.html", folder / "benchmark.md", plots)
    closed = findings.closed(recipe)
    opening = introduction(recipe, findings)
    write_bytes(report.page, render_page(recipe.name, opening, closed, sections, plots).encode("utf-8", "replace"))
    write_bytes(report.markdown, render(recipe.name, opening, closed, sections, plots).encode("utf-8", "replace"))
    console = console or summary_console()
    for section in sections:
        if section.key in ("acceptance", "parity", "lossless", "changes"):
            console.print(_table(section))
    console.print(f"Report: {report.page}", soft_wrap=True)
    console.print(f"As a baseline: artifact: {findings.key.removesuffix('.parquet')}", soft_wrap=True)
    if FlowRunContext.get() is not None:
        text = render(recipe.name, opening, closed, sections, {})
        create_markdown_artifact(text, key=artifact_key(recipe.name, "benchmark"), description="A draft in engines")
        for section in sections:
            rows = [dict(zip(section.headings, row, strict=True)) for row in section.rows]
            key = artifact_key(recipe.name, f"benchmark-{section.key}")
            create_table_artifact(rows, key=key, description=section.title)
        for name, path in plots.items():
            publish_image(path, artifact_key(recipe.name, name), PLOTS[name])
    return report


def introduction(recipe: BenchmarkRecipe, findings: Findings) -> list[str]:
    """What was run."""
    spec = recipe.measure
    return [
        f"The draft `{recipe.draft.source}` with `{recipe.target.model}`, up to {spec.max_tokens} new tokens per "
        f"prompt, seed {recipe.seed}, recipe `{recipe.fingerprint()[:16]}`.",
        f"All answers: artifact `{findings.key}`.",
    ]


def render(
    name: str, opening: Sequence[str], closed: Sequence[str], sections: Sequence[Section], plots: Mapping[str, Path]
) -> str:
    """The report in Markdown; `plots` that lie beside it are referred to."""
    parts = [f"# {name}", *opening]
    parts += ["\n".join(f"- **{reason}**" for reason in closed) if closed else "Every gate of the recipe is open."]
    for section in sections:
        text = [section.text] if section.text else []
        parts += [f"## {section.title}", *text, grid(section.headings, section.rows)]
    parts += [f"![{PLOTS[plot]}]({plot}.svg)" for plot in plots]
    return "\n\n".join(parts) + "\n"


def _history(path: Path, findings: Findings) -> list[dict[str, object]]:
    """The runs of this benchmark so far and this one, which is written beside them."""
    try:
        rows = read_table(path, HISTORY).to_pylist()
    except ArtifactInvalid:  # the first run, or somebody else's file: the history begins anew
        rows = []
    rows = [row for row in rows if row["key"] != findings.key]
    for one in findings.figures.overall:
        if one.place.steps and not math.isnan(one.length):
            place = one.place
            label = f"{place.label}, t {place.temperature:g}, {place.concurrency} in flight"
            rows.append(
                {"made_at": findings.made_at, "key": findings.key, "label": label, "length": one.length}
                | {"low": one.low, "high": one.high, "tokens_per_second": one.tokens_per_second}
            )
    write_table(path, HISTORY.table(rows, "history"), HISTORY)
    return rows


def _table(section: Section) -> Table:
    kept = SHORT if section.key == "acceptance" else range(len(section.headings))
    table = Table(title=section.title, title_justify="left", header_style="bold")
    for index in kept:
        table.add_column(section.headings[index])
    for row in section.rows:
        table.add_row(*(row[index] for index in kept), style="bold" if "draft" in row else None)
    return table
