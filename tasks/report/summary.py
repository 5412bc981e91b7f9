"""The two tables at the end of a run, for the terminal: what each step did, and what the draft reached."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tasks.artifacts.display import size
from tasks.benchmark.statistics import Acceptance, Measured
from tasks.report.steps import StepRow, StepTotal, totals

_PAGE_WIDTH = 124

STEP_HEADINGS = ("step", "runs", "rows", "quarantined", "tokens", "seconds", "size", "")
ACCEPTANCE_HEADINGS = (
    "drafter",
    "temperature",
    "acceptance length",
    "95 % interval",
    "accepted per position",
    "prompts",
    "greedy identical",
)


def summary_console() -> Console:
    """The terminal, or a page wide enough for the tables where the output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=_PAGE_WIDTH)


def print_summary(rows: Sequence[StepRow], measured: Measured, console: Console) -> None:
    """Print both tables."""
    console.print(steps_table(rows))
    console.print(acceptance_table(measured))
    console.print(closing_line(rows))


def steps_table(rows: Sequence[StepRow]) -> Table:
    """Rows, tokens, seconds and bytes per step; seconds are those of the run that made the artifacts."""
    table = _table("Steps", STEP_HEADINGS, text=(0, 7))
    for total in totals(rows):
        table.add_row(*step_cells(total), style="dim" if total.cached == total.runs else None)
    return table


def acceptance_table(measured: Measured) -> Table:
    """Acceptance per drafter and temperature."""
    table = _table("Acceptance", ACCEPTANCE_HEADINGS, text=(0, 4, 6))
    for a in measured.overall:
        table.add_row(*acceptance_cells(a, measured), style="bold" if a.drafter == "trained" else None)
    return table


def closing_line(rows: Sequence[StepRow]) -> str:
    """Whether anything was computed."""
    computed = sum(not row.cached for row in rows)
    if not computed:
        return f"All {len(rows)} results were cached; nothing was computed."
    return f"{computed} of {len(rows)} results were computed, {len(rows) - computed} were cached."


def step_cells(total: StepTotal) -> tuple[str, ...]:
    """The cells under STEP_HEADINGS."""
    return (
        total.step,
        str(total.runs),
        f"{total.rows:,}" if total.rows else "",
        f"{total.quarantined:,}" if total.quarantined else "",
        "" if total.tokens is None else f"{total.tokens:,}",
        f"{total.seconds:,.1f}",
        size(total.bytes),
        total.origin,
    )


def acceptance_cells(a: Acceptance, measured: Measured) -> tuple[str, ...]:
    """The cells under ACCEPTANCE_HEADINGS."""
    interval = "–" if not a.chain or math.isnan(a.low) else f"{a.low:.3f} to {a.high:.3f}"
    positions = " ".join("–" if math.isnan(share) else f"{share:.3f}" for share in a.joint)
    return (
        a.drafter,
        f"{a.temperature:g}",
        "–" if math.isnan(a.length) else f"{a.length:.3f}",
        interval,
        positions,
        str(a.prompts),
        identity_cell(a, measured),
    )


def identity_cell(a: Acceptance, measured: Measured) -> str:
    """Whether greedy output equals plain greedy decoding; empty where that cannot be asked."""
    identity = measured.identity_of(a.drafter) if a.temperature == 0 else None
    if identity is None:
        return ""
    answer = "no" if identity.differing else "yes"
    return f"{answer}, {identity.identical} of {identity.compared}"


def _table(title: str, headings: Sequence[str], text: Sequence[int]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index in text else "right")
    return table
