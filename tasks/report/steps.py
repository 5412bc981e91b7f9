"""The finished task runs of a flow as rows of a summary, and their sums per step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.artifacts.artifact import FILE, Artifact, Rows, Shards

_TOKEN_FACTS = ("tokens", "completion_tokens")
_ASIDE = (
    FILE,
    "quarantine",
    "audit",
    "coverage",
    "distributions",
    "providers",
    "ledger",
    "account",
    "datasets",
)  # what stands beside the rows that go on


class Finished(Protocol):
    """What a flow remembers of a finished task run."""

    @property
    def label(self) -> str: ...  # the task run's name; its first word is the step
    @property
    def artifact(self) -> Artifact: ...
    @property
    def cached(self) -> bool: ...


@dataclass(frozen=True)
class StepRow:
    """One artifact of a run. `rows` are the good ones; `tokens` is None where the step counts none."""

    step: str
    label: str
    artifact: Artifact
    cached: bool
    rows: int
    quarantined: int
    tokens: int | None
    bytes: int

    @classmethod
    def of(cls, finished: Finished) -> StepRow:
        """Read rows, tokens and bytes off the artifact."""
        artifact = finished.artifact
        rows = quarantined = size = 0
        match artifact:
            case Shards():
                rows = sum(s.rows for s in artifact.shards if s.contract not in _ASIDE)
                quarantined = artifact.rows("quarantine")
                size = sum(shard.bytes for shard in artifact.shards)
            case Rows():
                rows, size = artifact.table.num_rows, artifact.table.nbytes
        tokens = next((artifact.facts[name] for name in _TOKEN_FACTS if name in artifact.facts), None)
        if isinstance(tokens, dict):  # by split
            tokens = sum(tokens.values())
        step = finished.label.split()[0]
        return cls(step, finished.label, artifact, finished.cached, rows, quarantined, tokens, size)

    @property
    def seconds(self) -> float:
        """What the task took when the artifact was made, in this run or an earlier one."""
        return float(self.artifact.lineage.get("seconds", 0.0))

    @property
    def result_path(self) -> str:
        """The artifact's Parquet file, relative to the store."""
        return f"results/{self.artifact.lineage.get('key', '')}"


@dataclass(frozen=True)
class StepTotal:
    """The sums of one step's task runs."""

    step: str
    runs: int
    cached: int
    rows: int
    quarantined: int
    tokens: int | None
    seconds: float
    bytes: int

    @property
    def origin(self) -> str:
        """Whether the step's artifacts were cached or computed in this run."""
        if self.cached == self.runs:
            return "cached"
        return "computed" if not self.cached else f"{self.runs - self.cached} computed, {self.cached} cached"


def totals(rows: Iterable[StepRow]) -> list[StepTotal]:
    """One total per step, in the order in which the steps first appear."""
    groups: dict[str, list[StepRow]] = {}
    for row in rows:
        groups.setdefault(row.step, []).append(row)
    return [_total(step, group) for step, group in groups.items()]


def _total(step: str, group: Sequence[StepRow]) -> StepTotal:
    tokens = [row.tokens for row in group if row.tokens is not None]
    return StepTotal(
        step,
        len(group),
        sum(row.cached for row in group),
        sum(row.rows for row in group),
        sum(row.quarantined for row in group),
        sum(tokens) if tokens else None,
        sum(row.seconds for row in group),
        sum(row.bytes for row in group),
    )
