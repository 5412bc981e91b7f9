"""What a pilot foretells, for people: a table on the terminal, in the form that asks for approval, and in Prefect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.context import FlowRunContext
from rich.console import Console
from rich.table import Table

from tasks.artifacts.artifact import Rows
from tasks.artifacts.display import size
from tasks.report.publish import artifact_key
from tasks.report.summary import summary_console

_log = logging.getLogger("eyas.report")


def report_forecast(recipe: str, forecast: Rows, console: Console | None = None) -> list[dict[str, str]]:
    """Show a forecast (contract FORECAST); returns its rows as they are shown."""
    rows = [_shown(row) for row in forecast.table.to_pylist()]
    table = Table(title=f"Forecast of {recipe}: what is still to be asked", title_justify="left", header_style="bold")
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for row in rows:
        table.add_row(*row.values(), style=None if row is not rows[-1] else "bold")
    (console or summary_console()).print(table)
    for row in rows:
        _log.info("%s", ", ".join(f"{name} {value}" for name, value in row.items()))
    if FlowRunContext.get() is not None:
        title = "What is still to be asked, with 95 % intervals"
        create_table_artifact(list(rows), artifact_key(recipe, "forecast"), title)
    return rows


def forecast_markdown(forecast: Rows) -> str:
    """The same as a Markdown table."""
    rows = [_shown(row) for row in forecast.table.to_pylist()]
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0]), *(" | ".join(row.values()) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    hours = "unknown" if row["hours"] is None else _interval(row, "hours", "{:,.2f}".format)
    return {
        "dataset": row["dataset"] or "all",
        "prompts": f"{row['prompts']:,}",
        "answers seen": f"{row['pilot']:,}" + (f" ({row['at_limit']:,} cut)" if row["at_limit"] else ""),
        "answer tokens": _interval(row, "completion_tokens", "{:,.0f}".format),
        "USD": _interval(row, "usd", _dollars),
        "USD at most": _dollars(row["usd_worst"]),
        "hours": hours,
        "disk": _interval(row, "bytes", lambda value: size(int(value))),
    }


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.4f}"


def _interval(row: Mapping[str, Any], name: str, show: Any) -> str:
    return f"{show(row[name])} ({show(row[f'{name}_low'])} to {show(row[f'{name}_high'])})"
