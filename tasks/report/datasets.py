"""The table of the datasets that servers answered: on the log, and as a table artifact in Prefect."""

from __future__ import annotations

import logging
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.context import FlowRunContext

from tasks.artifacts.artifact import Shards
from tasks.report.publish import artifact_key

_NANO = 10**9

_log = logging.getLogger("eyas.report")


def report_datasets(recipe: str, generated: Shards) -> list[dict[str, Any]]:
    """Show part `datasets` of a result of generate; returns its rows as they are shown."""
    rows = [
        {
            "dataset": row["dataset"],
            "prompts": row["prompts"],
            "answered": row["answered"],
            "failed attempts": row["errors"],
            "with reasoning": f"{row['reasoning_share']:.1%}",
            "tokens": row["prompt_tokens"] + row["completion_tokens"],
            "mean answer": round(row["mean_answer_tokens"], 1),
            "spend": f"${row['cost_nanousd'] / _NANO:,.6f}",
        }
        for row in generated.table("datasets").to_pylist()
    ]
    for row in rows:
        _log.info("%s", ", ".join(f"{name} {value}" for name, value in row.items()))
    if FlowRunContext.get() is not None:
        create_table_artifact(rows, artifact_key(recipe, "datasets"), "Answers of the servers, by dataset")
    return rows
