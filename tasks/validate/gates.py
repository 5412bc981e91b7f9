"""How many rows failed which rule, and how many may: the limits of a recipe, each with the name of its field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from schemas.answers import AUDIT
from schemas.sections import AuditSpec
from tasks.validate.rules import Rule

_EXAMPLES = 3
_ROUNDING = 1e-9  # 0.29 * 100 is a little less than 29
_RECONSTRUCT = "reconstruct"
_DUPLICATES = ("duplicate_prompt", "near_duplicate")
# Turns that could not be asked because of what the target did in the turn before: counted, and no fault of the data.
_FOLLOWING = ("parent_unusable", "tool_call_missing", "tool_call_mismatch", "tool_result_missing")


@dataclass
class Tally:
    """How many rows a step saw, and how many failed which rule, with a few examples of each."""

    failed: dict[str, int]
    rows: int = 0
    kept: int = 0
    cut: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, rule: str, count: int, examples: Sequence[str] = ()) -> None:
        """Count rows that failed a rule."""
        self.failed[rule] = self.failed.get(rule, 0) + count
        shown = self.examples.get(rule, [])
        if more := [*shown, *examples][:_EXAMPLES]:
            self.examples[rule] = more


def tally_rows(tally: Tally, upstream: Mapping[str, Tally], rules: Sequence[Rule], spec: AuditSpec) -> pa.Table:
    """All counts and limits (contract AUDIT)."""
    kinds = {rule.name: rule.kind for rule in rules}
    rows = [
        _row(name, step.rows, count, 1 if name.partition(":")[2] in _FOLLOWING else spec.max_quarantined_share)
        for step in upstream.values()
        for name, count in step.failed.items()
    ]
    rebuilt = upstream.get(_RECONSTRUCT, Tally({}))
    unexplained = rebuilt.failed.get(f"{_RECONSTRUCT}:unexplained", 0)
    duplicates = sum(tally.failed.get(name, 0) for name in _DUPLICATES)
    rows += [
        _row("max_truncated_share", tally.rows, tally.cut, spec.max_truncated_share),
        _row("max_unexplained_share", rebuilt.rows, unexplained, spec.max_unexplained_share),
        _row("max_duplicate_share", tally.rows, duplicates, spec.max_duplicate_share),
    ]
    rows += [
        _row(name, tally.rows, count, spec.max_quarantined_share if kinds[name] == "gate" else 1)
        for name, count in tally.failed.items()
    ]
    return AUDIT.table(rows, "audit")


def broken_gates(table: pa.Table, tally: Tally, rules: Sequence[Rule], spec: AuditSpec) -> list[str]:
    """Every gate that is closed, with its figures and its field."""
    faults = []
    quarantining: list[str] = []
    for row in table.to_pylist():
        name, rows, failed = row["check"], row["rows"], row["failed"]
        if failed <= row["limit"]:
            continue
        share = f"{failed} of {rows} rows, {failed / rows:.2%}"
        if name.startswith("max_"):
            faults.append(f"{_MEANINGS[name]} in {share}; audit.{name} allows {getattr(spec, name):.2%}")
        else:
            quarantining.append(f"{name} ({share})")
    if quarantining:
        faults.append(
            f"too many rows fail {', '.join(quarantining)}; audit.max_quarantined_share allows "
            f"{spec.max_quarantined_share:.2%} for each check"
        )
    if tally.kept < spec.min_rows:
        faults.append(f"{tally.kept} good rows are left, audit.min_rows asks for {spec.min_rows}")
    return faults


_MEANINGS = {
    "max_truncated_share": "the answer was cut",
    "max_unexplained_share": "nothing explains the billed count",
    "max_duplicate_share": "the prompt is equal or nearly equal to an earlier one",
}


def _row(check: str, rows: int, failed: int, share: float) -> dict[str, object]:
    return {"check": check, "rows": rows, "failed": failed, "limit": math.floor(share * rows + _ROUNDING)}
