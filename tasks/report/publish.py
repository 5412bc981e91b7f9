"""The report as Prefect artifacts: Markdown, tables and images, to be called from a flow."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from tasks.benchmark.statistics import Measured
from tasks.report.markdown import PLOTS
from tasks.report.steps import StepRow, totals
from tasks.report.summary import ACCEPTANCE_HEADINGS, STEP_HEADINGS, acceptance_cells, step_cells


def publish(name: str, markdown: str, rows: Sequence[StepRow], measured: Measured, plots: dict[str, Path]) -> None:
    """Create one artifact each for report, steps, acceptance and every plot; keys begin with the recipe's name."""
    create_markdown_artifact(markdown, key=artifact_key(name, "report"), description="What was run, and what came out")
    publish_steps(name, rows)
    create_table_artifact(
        [dict(zip(ACCEPTANCE_HEADINGS, acceptance_cells(a, measured), strict=True)) for a in measured.overall],
        key=artifact_key(name, "acceptance"),
        description="Acceptance per drafter and temperature",
    )
    for plot, path in plots.items():
        publish_image(path, artifact_key(name, plot), PLOTS.get(plot, plot))


def publish_steps(name: str, rows: Sequence[StepRow]) -> None:
    """Create the artifact of the steps."""
    create_table_artifact(
        [dict(zip(STEP_HEADINGS, step_cells(total), strict=True)) for total in totals(rows)],
        key=artifact_key(name, "steps"),
        description="Rows, tokens, seconds and bytes per step",
    )


def publish_image(path: Path, key: str, description: str) -> None:
    """Create an image artifact; the UI cannot read files of this machine, so the image travels inside it."""
    content = base64.b64encode(path.read_bytes()).decode()
    create_image_artifact(f"data:image/png;base64,{content}", key=key, description=description)


def artifact_key(name: str, what: str) -> str:
    """The key of a Prefect artifact of a recipe."""
    return re.sub(r"[^a-z0-9]+", "-", f"{name}-{what}".lower()).strip("-")
