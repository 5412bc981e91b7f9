"""Applies the rules to one shard after another, keeps the tally, and closes the gate when too many rows failed.

Memory grows with the rows only by the prompt ids seen (about 100 B a row) and the near-duplicate index (duplicates.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.errors import GateFailed
from schemas.prompts import QUARANTINE, quarantine_row
from schemas.sections import AuditSpec, ReconstructionSpec
from tasks.validate.distributions import Distributions
from tasks.validate.duplicates import NearDuplicates
from tasks.validate.figures import Figures, Known, figures, prompt_key
from tasks.validate.gates import Tally, broken_gates, tally_rows
from tasks.validate.rules import Rule, failures, rules_for
from tasks.validate.texts import add_overlaps, add_texts, decoded, read_requests

STEP = "validate"
_EXAMPLES = 3
_SHOWN_REJECTED = 40  # quarantined rows that a failed audit carries for its report


class AuditFailed(GateFailed):
    """A gate is closed; `brief` says which, and `findings` is what the audit found, for a report."""

    brief: str
    findings: Findings


@dataclass(frozen=True)
class Audited:
    """The rows of one shard that may go on, and the quarantine rows of the others."""

    sequences: pa.Table
    quarantine: pa.Table


@dataclass(frozen=True)
class Findings:
    """What an audit found: contracts AUDIT, DISTRIBUTIONS and QUARANTINE (of the latter some rows), and its facts."""

    audit: pa.Table
    distributions: pa.Table
    quarantine: pa.Table
    facts: Mapping[str, object]


class Audit:
    """The audit of a run: feed it every shard, then ask for its table and let it judge."""

    def __init__(self, known: Known, spec: AuditSpec, reconstruction: ReconstructionSpec) -> None:
        rules = rules_for(spec, reconstruction)
        self.rules = [rule for rule in rules if known.has(rule.needs)]
        self.unchecked = [rule for rule in rules if not known.has(rule.needs)]
        self.spec = spec
        self.distributions = Distributions()
        self.tally = Tally({rule.name: 0 for rule in self.rules})
        self.upstream: dict[str, Tally] = {}
        self._known = known
        self._seen: set[bytes] = set()
        similarity = spec.near_duplicate_similarity
        self._duplicates = NearDuplicates(similarity) if similarity else None
        self._rejected = [QUARANTINE.arrow.empty_table()]

    def count_upstream(self, step: str, facts: Mapping[str, object]) -> None:
        """Take in what an earlier step quarantined (its `facts`), so that the gate sees rows that never came here."""
        quarantined = facts.get("quarantined", {})
        rows = facts.get("rows_in", 0)
        if isinstance(quarantined, Mapping) and isinstance(rows, int):
            tally = self.upstream.setdefault(step, Tally({}))
            tally.rows += rows
            for reason, count in quarantined.items():
                tally.add(f"{step}:{reason}", int(count))

    def take(self, sequences: pa.Table) -> Audited:
        """Judge one shard (contract SEQUENCES). A row that fails several rules is quarantined for the first."""
        found = figures(sequences, self._known, self.spec, self._seen)
        answers = self._decode(found, sequences)
        add_texts(found, sequences, answers)
        requests = read_requests(found, sequences)
        faulty = self._faulty(found)
        sound = {row: request for row, request in requests.items() if row not in faulty}
        add_overlaps(found, sequences, sound, self._known.benchmark, self._duplicates)
        reasons = self._faulty(found)
        self._count(found, reasons, sequences)
        self.distributions.take(sequences, requests, answers)
        good = sequences.filter(pa.array([row not in reasons for row in range(sequences.num_rows)], pa.bool_()))
        self.tally.kept += good.num_rows
        rejected = _quarantine(sequences, reasons, found)
        self._keep_for_report(rejected)
        return Audited(good, rejected)

    def table(self) -> pa.Table:
        """The tally (contract AUDIT): what earlier steps quarantined, the gates over shares, and a row per rule."""
        return tally_rows(self.tally, self.upstream, self.rules, self.spec)

    def facts(self) -> dict[str, object]:
        """Counts of rows, what each rule asks, and what only gave a warning."""
        kinds = {rule.name: rule.kind for rule in self.rules}
        counted = {name: count for name, count in self.tally.failed.items() if count}
        return {
            "rows_in": self.tally.rows,
            "rows_out": self.tally.kept,
            "quarantined": {name: count for name, count in counted.items() if kinds[name] != "warning"},
            "warnings": {name: count for name, count in counted.items() if kinds[name] == "warning"},
            "rules": {rule.name: rule.sentence for rule in self.rules},
            "examples": self.tally.examples,
        }

    def findings(self) -> Findings:
        """All that a report shows."""
        table, facts = self.table(), self.facts()
        kinds = {rule.name: rule.kind for rule in self.rules}
        lost = {
            reason: count
            for tally in (*self.upstream.values(), self.tally)
            for reason, count in tally.failed.items()
            if kinds.get(reason) != "warning"
        }
        return Findings(table, self.distributions.table(lost), pa.concat_tables(self._rejected), facts)

    def judge(self) -> Findings:
        """What was found, if the gate stays open.

        Raises:
            AuditFailed: a rule failed too often, or too few rows are left; with the audit as a table, examples, and
                what to do.
        """
        findings = self.findings()
        faults = broken_gates(findings.audit, self.tally, self.rules, self.spec)
        if not faults:
            return findings
        brief = f"the audit stops the flow: {'; '.join(faults)}"
        error = AuditFailed(
            f"{brief}\n{self.text(findings.audit)}\n"
            "Look at these rows and mend their cause; or, if they are as you want them, change the fields named above."
        )
        error.brief, error.findings = brief, findings
        raise error

    def text(self, table: pa.Table) -> str:
        """The table for people, with a sentence and examples for each check."""
        sentences = {rule.name: rule.sentence for rule in self.rules}
        lines = [f"{'check':<36} {'rows':>8} {'failed':>8} {'limit':>8}  what it asks, and rows that failed"]
        for row in table.to_pylist():
            name = row["check"]
            note = sentences.get(name, "a gate over all rows" if ":" not in name else "the row came through before")
            if examples := self.tally.examples.get(name):
                note += f" (e.g. prompts {', '.join(examples)})"
            lines.append(f"{name:<36} {row['rows']:>8} {row['failed']:>8} {row['limit']:>8}  {note}")
        return "\n".join(lines)

    def _decode(self, found: Figures, sequences: pa.Table) -> dict[int, str]:
        if self._known.codec is None or "id_out_of_range" not in found.columns:
            return {}
        sound = np.flatnonzero(found.columns["id_out_of_range"] == 0)
        return decoded(sequences, self._known.codec, sound.tolist())

    def _faulty(self, found: Figures) -> dict[int, Rule]:
        """The first rule that each row to be quarantined fails."""
        quarantining = [rule for rule in self.rules if rule.kind != "warning"]
        failed = failures(found.columns, quarantining)
        reasons: dict[int, Rule] = {}
        for rule in quarantining:
            for row in failed[rule.name]:
                reasons.setdefault(row, rule)
        return reasons

    def _count(self, found: Figures, reasons: Mapping[int, Rule], sequences: pa.Table) -> None:
        prompt_ids: Sequence[str] = sequences["prompt_id"].to_pylist()
        warnings = [rule for rule in self.rules if rule.kind == "warning"]
        rows_of = {name: sorted(rows) for name, rows in failures(found.columns, warnings).items()}
        for row, rule in sorted(reasons.items()):
            rows_of.setdefault(rule.name, []).append(row)
        for name, rows in rows_of.items():
            self.tally.add(name, len(rows), [prompt_ids[row] for row in rows[:_EXAMPLES]])
        self.tally.rows += sequences.num_rows
        self.tally.cut += sequences["finish_reason"].to_pylist().count("length")
        self._seen.update(map(prompt_key, prompt_ids))

    def _keep_for_report(self, rejected: pa.Table) -> None:
        room = _SHOWN_REJECTED - sum(table.num_rows for table in self._rejected)
        if room > 0 and rejected.num_rows:
            self._rejected.append(rejected.slice(0, room))


def _quarantine(sequences: pa.Table, reasons: Mapping[int, Rule], found: Figures) -> pa.Table:
    if not reasons:
        return QUARANTINE.arrow.empty_table()
    numbers = sorted(reasons)
    rows = sequences.take(pa.array(numbers, pa.int64())).to_pylist()
    return QUARANTINE.table(
        quarantine_row(
            STEP,
            row["dataset"],
            row["prompt_id"],
            reasons[number].name,
            _detail(reasons[number], found.details.get((reasons[number].name, number), "")),
            json.dumps(row, ensure_ascii=False, sort_keys=True).encode(),
        )
        for number, row in zip(numbers, rows, strict=True)
    )


def _detail(rule: Rule, particulars: str) -> str:
    asked = f"a sequence must keep this rule: {rule.sentence}"
    return f"{asked} ({particulars})" if particulars else asked
