"""The report of a run in Markdown: figures, plots, and every artifact by step, key, digest, rows, bytes and path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.artifacts.artifact import Shards
from tasks.artifacts.display import size
from tasks.benchmark.statistics import Acceptance, Measured
from tasks.report.steps import StepRow, totals
from tasks.report.summary import (
    ACCEPTANCE_HEADINGS,
    STEP_HEADINGS,
    acceptance_cells,
    closing_line,
    step_cells,
)

SIMULATIONS = "simulated"  # part of the simulation's artifact
PLOTS = {
    "training": "Loss and simulated acceptance over training",
    "acceptance_by_position": "Acceptance by position",
    "acceptance_by_dataset": "Acceptance length by dataset, with 95 % intervals",
}


def render_report(name: str, intro: str, rows: Sequence[StepRow], measured: Measured, plots: bool = True) -> str:
    """The whole report.

    Args:
        name: the recipe's.
        intro: a sentence or two on what was run.
        rows: every artifact of the run.
        measured: the benchmark's figures.
        plots: whether to refer to the plots that lie beside the report.
    """
    sections = [
        f"# {name}",
        intro,
        "## Acceptance",
        "Acceptance length is 1 + accepted drafts per verify step of the target; its 95 % interval is a bootstrap over "
        "prompts. Accepted per position: share of verify steps that accepted that position and all before it.",
        grid(ACCEPTANCE_HEADINGS, (acceptance_cells(a, measured) for a in measured.overall)),
        *_verdicts(measured),
        *_differences(measured),
        "### By dataset",
        grid(("dataset", *ACCEPTANCE_HEADINGS[:-1]), (_dataset_cells(a, measured) for a in measured.by_dataset)),
        *_simulated(rows),
        *([f"![{title}]({plot}.svg)" for plot, title in PLOTS.items()] if plots else []),
        "## Steps",
        "Seconds are those of the run that made the artifacts; tasks of a step run side by side.",
        grid(STEP_HEADINGS, (step_cells(total) for total in totals(rows))),
        closing_line(rows),
        "## Artifacts",
        "Paths are relative to the store. `python -m tasks.artifacts show KEY` shows one.",
        grid(("step", "key", "digest", "rows", "size", "path"), (_artifact_cells(row) for row in rows)),
    ]
    return "\n\n".join(sections) + "\n"


def _verdicts(measured: Measured) -> list[str]:
    """The trained draft against each baseline, one line per temperature."""
    lines = []
    for a in measured.overall:
        trained = measured.of("trained", a.temperature)
        if trained is None or not a.chain or a.drafter == "trained":
            continue
        if trained.exceeds(a):
            relation = "above, with separate intervals"
        elif a.exceeds(trained):
            relation = "below, with separate intervals"
        else:
            relation = "not separated: the intervals overlap"
        lengths = f"trained {trained.length:.3f} against {a.drafter} {a.length:.3f}"
        lines.append(f"- temperature {a.temperature:g}: {lengths}: {relation}")
    return ["\n".join(lines)] if lines else []


def _simulated(rows: Sequence[StepRow]) -> list[str]:
    """What the draft would get on held-out answers, from the artifacts that say so."""
    artifacts = [row.artifact for row in rows if isinstance(row.artifact, Shards) and row.artifact.part(SIMULATIONS)]
    if not artifacts:
        return []
    found = [row for artifact in artifacts for row in artifact.table(SIMULATIONS).to_pylist()]
    return [
        "### Simulated acceptance",
        "On answers that were held out of training: 1 + the shares of chains whose guesses so far are all the target's "
        "best tokens, with a 95 % interval by bootstrap over answers; context is the number of tokens before a chain.",
        grid(("group", "length", "95 % interval", "surviving per position", "answers"), map(_simulated_cells, found)),
    ]


def _simulated_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (good / many for good, many in zip(row["survived"], row["chains"], strict=True) if many)
    return (
        " ".join(filter(None, (row["group"], row["name"]))),
        f"{row['length']:.3f}",
        f"{row['low']:.3f} to {row['high']:.3f}",
        " ".join(f"{share:.3f}" for share in shares),
        str(row["sequences"]),
    )


def _differences(measured: Measured) -> list[str]:
    """Where a greedy output is not that of plain decoding."""
    lines = [
        f"- {identity.drafter}, prompt {difference.prompt_id}: first differs at position {difference.position}"
        for identity in measured.identity
        for difference in identity.differing
    ]
    if not lines:
        return []
    return ["Greedy outputs that differ from plain greedy decoding:", "\n".join(lines)]


def _dataset_cells(a: Acceptance, measured: Measured) -> tuple[str, ...]:
    return (a.dataset or "", *acceptance_cells(a, measured)[:-1])


def _artifact_cells(row: StepRow) -> tuple[str, ...]:
    key = str(row.artifact.lineage.get("key", ""))
    return (
        row.label,
        f"`{key}`",
        f"`{row.artifact.digest()}`",
        f"{row.rows:,}",
        size(row.bytes),
        f"`{row.result_path}`",
    )


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Cells may hold what others wrote, such as names of providers: it stays text, on one line."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
