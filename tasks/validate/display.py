"""An audit on the terminal: what was checked and how often it failed, what the rows are like, and rows that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tasks.validate.audit import Findings
from tasks.validate.rules import Rule

_EXAMPLES = 2  # rows shown of each reason
_DETAIL = 300  # characters of it
_LENGTHS = ("prompt_length", "answer_length")


def print_findings(findings: Findings, unchecked: Sequence[Rule], console: Console) -> None:
    """Print all of an audit."""
    facts = findings.facts
    console.print(_checks(findings))
    if unchecked:
        needs = sorted({str(rule.needs) for rule in unchecked})
        names = ", ".join(rule.name for rule in unchecked)
        console.print(f"Not checked, since no {' and no '.join(needs)} was given: {names}")
    console.print(_lengths(findings.distributions))
    console.print(_counts(findings.distributions))
    for line in _examples(findings.quarantine):
        console.print(line, highlight=False, markup=False)
    console.print(
        f"{facts['rows_in']} rows in, {facts['rows_out']} good, {sum(_map(facts['quarantined']).values())} not"
    )


def _checks(findings: Findings) -> Table:
    sentences = _map(findings.facts["rules"])
    warned = _map(findings.facts["warnings"])
    table = Table("check", title="Audit", title_justify="left")
    for name in ("rows", "failed", "limit"):
        table.add_column(name, justify="right")
    table.add_column("what it asks")
    for row in findings.audit.to_pylist():
        name, failed = row["check"], row["failed"]
        style = "red" if failed > row["limit"] else "yellow" if failed else None
        asked = sentences.get(name, "gate over all rows")
        note = f"{asked} (warning)" if name in warned else asked
        table.add_row(name, f"{row['rows']:,}", f"{failed:,}", f"{row['limit']:,}", note, style=style)
    return table


def _lengths(distributions: pa.Table) -> Table:
    table = Table("length in ids, to the bin", "dataset", title="Lengths", title_justify="left")
    for name in ("median", "90 %", "99 %", "longest"):
        table.add_column(name, justify="right")
    for (name, series), counts in _groups(distributions, _LENGTHS).items():
        cells = [str(_quantile(counts, share)) for share in (0.5, 0.9, 0.99, 1)]
        table.add_row(name.removesuffix("_length"), series, *cells)
    return table


def _counts(distributions: pa.Table) -> Table:
    table = Table("distribution", "of", "rows by value", title="Distributions", title_justify="left")
    names = [name for name in distributions["distribution"].unique().to_pylist() if name not in _LENGTHS]
    for (name, series), counts in _groups(distributions, names).items():
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        table.add_row(name, series, ", ".join(f"{key}: {rows:,}" for key, rows in ordered))
    return table


def _examples(quarantine: pa.Table) -> list[str]:
    lines: list[str] = []
    shown: dict[str, int] = {}
    for row in quarantine.select(["reason", "source_key", "detail"]).to_pylist():
        shown[row["reason"]] = shown.get(row["reason"], 0) + 1
        if shown[row["reason"]] <= _EXAMPLES:
            lines.append(f"{row['reason']}: prompt {row['source_key']}: {row['detail'][:_DETAIL]}")
    return lines


def _groups(distributions: pa.Table, names: Sequence[str]) -> dict[tuple[str, str], dict[str, int]]:
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for row in distributions.to_pylist():
        if row["distribution"] in names:
            groups.setdefault((row["distribution"], row["series"]), {})[row["key"]] = row["rows"]
    return groups


def _quantile(counts: Mapping[str, int], share: float) -> int:
    least = share * sum(counts.values())
    total = 0
    for key in sorted(map(int, counts)):
        total += counts[str(key)]
        if total >= least:
            return key
    return 0


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
