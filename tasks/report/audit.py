"""The report of an audit: files in <store>/reports/<recipe name>, and the same in Prefect; also of one that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from schemas.prompts import QUARANTINE
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_bytes
from tasks.report.audit_html import render_html
from tasks.report.audit_plots import PLOTS, write_audit_plots
from tasks.report.audit_samples import choose_samples
from tasks.report.markdown import grid
from tasks.report.publish import artifact_key, publish_image
from tasks.target.text import load_codec_of
from tasks.validate.audit import AuditFailed, Findings

HEADINGS = ("check", "rows", "failed", "limit", "asks")
_ROWS_PER_REASON = 3  # of the quarantine that are read


@dataclass(frozen=True)
class AuditReport:
    """Where an audit's report lies."""

    markdown: Path
    html: Path
    plots: dict[str, Path]


def report_audit(
    store: Path, recipe: Recipe, audited: Shards | AuditFailed, sequences: Sequence[Shards], target: Shards
) -> AuditReport:
    """Write audit.md, audit.html and the plots, and publish them to Prefect when called in a flow run.

    Args:
        store: the store's root.
        recipe: what was run.
        audited: the result of validate, or the error with which a gate stopped it.
        sequences: results of reconstruct, for sample rows of an audit that failed.
        target: the prepared target.

    Raises:
        ArtifactInvalid: a shard is missing or altered.
    """
    if isinstance(audited, AuditFailed):
        findings, verdict = audited.findings, audited.brief
        kept: Iterable[pa.Table] = (table for one in sequences for table in one.tables("sequences"))
    else:
        findings, verdict = _findings(audited), ""
        kept = audited.tables("sequences")
    samples = choose_samples(load_codec_of(target, recipe.target), kept, findings.quarantine)
    folder = store / "reports" / recipe.name
    plots = write_audit_plots(folder, findings.distributions, samples)
    checks = check_rows(findings)
    report = AuditReport(folder / "audit.md", folder / "audit.html", plots)
    write_bytes(report.html, render_html(recipe.name, checks, samples).encode("utf-8", "backslashreplace"))
    write_bytes(report.markdown, render_audit(recipe.name, findings, verdict).encode("utf-8", "backslashreplace"))
    if FlowRunContext.get() is not None:
        _publish(recipe.name, findings, verdict, report)
    return report


def check_rows(findings: Findings) -> list[dict[str, str]]:
    """The audit's table for people: with each check whether its gate is closed, or whether it found something."""
    facts: Any = findings.facts
    rows = []
    for row in findings.audit.to_pylist():
        name, failed, limit = row["check"], row["failed"], row["limit"]
        asks = facts["rules"].get(name, "gate over all rows" if name.startswith("max_") else "an earlier step's rule")
        if name in facts["warnings"]:
            asks += " (a warning: the rows are kept)"
        state = "closed" if failed > limit else "found" if failed else ""
        rows.append(
            {"check": name, "rows": f"{row['rows']:,}", "failed": f"{failed:,}", "limit": f"{limit:,}"}
            | {"asks": asks, "state": state}
        )
    return rows


def render_audit(name: str, findings: Findings, verdict: str, plots: bool = True) -> str:
    """The report in Markdown.

    Args:
        name: the recipe's.
        findings: what the audit found.
        verdict: which gates are closed; empty if none is.
        plots: whether to refer to the plots that lie beside the report.
    """
    facts: Any = findings.facts
    lost = sum(facts["quarantined"].values())
    examples = [
        f"- {row['reason']}, prompt {row['source_key']}: {_code(row['detail'])}"
        for row in findings.quarantine.select(["reason", "source_key", "detail"]).to_pylist()
    ]
    sections = [
        f"# {name}: audit",
        f"**{verdict}**" if verdict else "Every gate is open.",
        f"{facts['rows_in']:,} sequences came in, {facts['rows_out']:,} go on, {lost:,} were quarantined here.",
        grid(HEADINGS, ([row[heading] for heading in HEADINGS] for row in check_rows(findings))),
        *([f"![{title}]({plot}.svg)" for plot, title in PLOTS.items()] if plots else []),
        *(["Sample rows, token by token: [audit.html](audit.html)"] if plots else []),
        *(["## Rows that were quarantined", "\n".join(examples)] if examples else []),
        "## Distributions",
        "Lengths are counted in bins, of which the least length is given. Languages are those of a sample of rows, "
        "the ones with the smallest prompt ids.",
        grid(("distribution", "of", "rows by value"), _distribution_cells(findings.distributions)),
    ]
    return "\n\n".join(sections) + "\n"


def _findings(audited: Shards) -> Findings:
    shown: dict[str, int] = {}
    rows = []
    for table in audited.tables("quarantine"):
        for place, reason in enumerate(table["reason"].to_pylist()):
            shown[reason] = shown.get(reason, 0) + 1
            if shown[reason] <= _ROWS_PER_REASON:
                rows.append(table.slice(place, 1))
    quarantine = pa.concat_tables([QUARANTINE.arrow.empty_table(), *rows])
    return Findings(audited.table("audit"), audited.table("distributions"), quarantine, audited.facts)


def _code(text: str) -> str:
    return f"`{' '.join(text.split()).replace('`', chr(0x2019))}`"  # markers would read as HTML


def _distribution_cells(distributions: pa.Table) -> list[tuple[str, str, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for row in distributions.to_pylist():
        groups.setdefault((row["distribution"], row["series"]), []).append(f"{row['key']}: {row['rows']:,}")
    return [(name, series, ", ".join(values)) for (name, series), values in groups.items()]


def _publish(name: str, findings: Findings, verdict: str, report: AuditReport) -> None:
    markdown = render_audit(name, findings, verdict, plots=False)
    create_markdown_artifact(markdown, key=artifact_key(name, "audit"), description="What the audit found")
    create_table_artifact(
        [{heading: row[heading] for heading in HEADINGS} for row in check_rows(findings)],
        key=artifact_key(name, "audit-checks"),
        description="Every check of the audit with its count",
    )
    for plot, path in report.plots.items():
        publish_image(path, artifact_key(name, plot), PLOTS[plot])
