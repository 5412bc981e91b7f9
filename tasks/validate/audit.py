"""Applies the rules to one shard after another, keeps the tally, and closes the gate when too many rows failed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from schemas.answers import AUDIT
from schemas.errors import GateFailed
from schemas.prompts import QUARANTINE, quarantine_row
from schemas.sections import AuditSpec
from tasks.validate.rules import Rule, TargetRules, failures, figures, rules_for

STEP = "validate"
_EXAMPLES = 3
_ROUNDING = 1e-9  # 0.29 * 100 is a little less than 29


@dataclass(frozen=True)
class Audited:
    """The rows of one shard that may go on, and the quarantine rows of the others."""

    sequences: pa.Table
    quarantine: pa.Table


@dataclass
class Tally:
    """How many rows failed which rule, with a few examples of each."""

    rows: int = 0
    kept: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, rule: str, count: int, examples: list[str]) -> None:
        """Count rows that failed a rule."""
        self.failed[rule] = self.failed.get(rule, 0) + count
        shown = self.examples.setdefault(rule, [])
        shown += examples[: _EXAMPLES - len(shown)]


class Audit:
    """The audit of a run: feed it every shard, then ask for its table and let it judge."""

    def __init__(self, target: TargetRules, spec: AuditSpec) -> None:
        self.rules = rules_for(spec)
        self.spec = spec
        self._target = target
        self._seen: set[str] = set()
        self._tally = Tally(failed={rule.name: 0 for rule in self.rules})
        self._upstream: dict[str, Tally] = {}

    def count_upstream(self, step: str, facts: Mapping[str, object]) -> None:
        """Take in what an earlier step quarantined (its `facts`), so that the gate sees rows that never came here."""
        quarantined = facts.get("quarantined", {})
        rows = facts.get("rows_in", 0)
        if isinstance(quarantined, Mapping) and isinstance(rows, int):
            tally = self._upstream.setdefault(step, Tally())
            tally.rows += rows
            for reason, count in quarantined.items():
                tally.add(f"{step}:{reason}", int(count), [])

    def take(self, sequences: pa.Table) -> Audited:
        """Judge one shard (contract SEQUENCES). A row that fails several rules is quarantined for the first."""
        frame = figures(sequences, self._target, self._seen)
        failed = failures(frame, self.rules)
        prompt_ids = sequences["prompt_id"].to_pylist()
        reason_of: dict[int, Rule] = {}
        for rule in self.rules:
            rows = failed[rule.name] if rule.kind == "warning" else [r for r in failed[rule.name] if r not in reason_of]
            self._tally.add(rule.name, len(rows), [prompt_ids[row] for row in rows[:_EXAMPLES]])
            if rule.kind != "warning":
                reason_of |= dict.fromkeys(rows, rule)
        self._seen.update(prompt_ids)
        good = sequences.filter(pa.array([row not in reason_of for row in range(sequences.num_rows)], pa.bool_()))
        self._tally.rows += sequences.num_rows
        self._tally.kept += good.num_rows
        return Audited(good, _quarantine(sequences, reason_of))

    def table(self) -> pa.Table:
        """The tally (contract AUDIT): a row per rule, after the reasons for which earlier steps quarantined rows."""
        tallies = [*self._upstream.values(), self._tally]
        return AUDIT.table([row for tally in tallies for row in self._rows(tally)], "audit")

    def facts(self) -> dict[str, object]:
        """Counts of rows, what each rule asks, and what only gave a warning."""
        kinds = {rule.name: rule.kind for rule in self.rules}
        counted = {name: count for name, count in self._tally.failed.items() if count}
        return {
            "rows_in": self._tally.rows,
            "rows_out": self._tally.kept,
            "quarantined": {name: count for name, count in counted.items() if kinds[name] != "warning"},
            "warnings": {name: count for name, count in counted.items() if kinds[name] == "warning"},
            "rules": {rule.name: rule.sentence for rule in self.rules},
        }

    def judge(self) -> None:
        """Close the gate if a rule failed too often, or too few rows are left.

        Raises:
            GateFailed: with the audit as a table, examples, and what to do.
        """
        table = self.table()
        broken = [row["check"] for row in table.to_pylist() if row["failed"] > row["limit"]]
        few = self._tally.kept < self.spec.min_rows
        if not broken and not few:
            return
        faults = [f"too many rows fail: {', '.join(broken)}"] if broken else []
        if few:
            faults.append(f"{self._tally.kept} good rows are left, audit.min_rows asks for {self.spec.min_rows}")
        raise GateFailed(
            f"the audit stops the flow: {'; '.join(faults)}\n{self._text(table)}\n"
            f"Look at these rows and mend their cause. If they are as you want them, raise audit.max_quarantined_share "
            f"(now {self.spec.max_quarantined_share:g}), or lower audit.min_rows (now {self.spec.min_rows})."
        )

    def _rows(self, tally: Tally) -> list[dict[str, object]]:
        ungated = {rule.name for rule in self.rules if rule.kind != "gate"}
        gated = math.floor(self.spec.max_quarantined_share * tally.rows + _ROUNDING)
        return [
            {
                "check": name,
                "rows": tally.rows,
                "failed": count,
                "limit": tally.rows if name in ungated else gated,
            }
            for name, count in tally.failed.items()
        ]

    def _text(self, table: pa.Table) -> str:
        sentences = {rule.name: rule.sentence for rule in self.rules}
        lines = [f"{'check':<36} {'rows':>8} {'failed':>8} {'limit':>8}  what it asks, and rows that failed"]
        for row in table.to_pylist():
            name = row["check"]
            note = sentences.get(name, "the row came through the steps before")
            if examples := self._tally.examples.get(name):
                note += f" (e.g. prompts {', '.join(examples)})"
            lines.append(f"{name:<36} {row['rows']:>8} {row['failed']:>8} {row['limit']:>8}  {note}")
        return "\n".join(lines)


def _quarantine(sequences: pa.Table, reason_of: dict[int, Rule]) -> pa.Table:
    numbers = sorted(reason_of)
    rows = sequences.take(pa.array(numbers, pa.int64())).to_pylist()
    return QUARANTINE.table(
        quarantine_row(
            STEP,
            row["dataset"],
            row["prompt_id"],
            reason_of[number].name,
            f"a sequence must keep this rule: {reason_of[number].sentence}",
            json.dumps(row, ensure_ascii=False, sort_keys=True).encode(),
        )
        for number, row in zip(numbers, rows, strict=True)
    )
