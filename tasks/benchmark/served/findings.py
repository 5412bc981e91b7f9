"""Everything a benchmark found, and which of it closes a gate of the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from schemas.benchmarking import BenchmarkRecipe
from tasks.artifacts.artifact import Rows, Shards
from tasks.benchmark.served.compare import Change, compare
from tasks.benchmark.served.figures import Row, Served, served_figures
from tasks.benchmark.served.lossless import Compared, compare_greedy
from tasks.benchmark.served.parity import Parity, parity
from tasks.benchmark.served.sampling import Sampled, compare_samples


@dataclass(frozen=True)
class Findings:
    """What the runs of one benchmark say together.

    Attributes:
        key: of the artifact that holds all answers.
        made_at: when it was made, ISO 8601.
        figures: acceptance and speed.
        greedy: answers with a drafter against those without.
        differences: rows of DIFFERENCES, each with its class.
        sampled: the tests of distributions.
        parity: engines against the foreseen counts; None if nothing could be foreseen.
        changes: against the baseline; empty without one.
    """

    key: str
    made_at: str
    figures: Served
    greedy: tuple[Compared, ...]
    differences: tuple[Row, ...]
    sampled: tuple[Sampled, ...]
    parity: Parity | None
    changes: tuple[Change, ...]

    def real(self) -> list[Row]:
        """Differences that no tie explains."""
        return [row for row in self.differences if row["kind"] == "real"]

    def closed(self, recipe: BenchmarkRecipe) -> list[str]:
        """Why the recipe says that this benchmark fails; empty if it does not."""
        reasons = []
        if recipe.lossless.fail:
            if real := self.real():
                first = real[0]
                reasons.append(
                    f"{len(real)} greedy answers with a drafter are not those without it, the first of "
                    f"{first['engine']} {first['drafter']}, prompt {first['prompt_id']}, at token {first['position']}"
                )
            reasons += [
                f"samples of {one.place.label} at temperature {one.place.temperature:g} have another distribution "
                f"than without a drafter (probability {one.probability:.2g}, farthest at prompt {one.prompt_id})"
                for one in self.sampled
                if one.probability < recipe.lossless.significance
            ]
        if recipe.parity.fail and self.parity:
            reasons += [f"{side.place.label}: {side.verdict}" for side in self.parity.failed]
        if recipe.baseline.fail:
            reasons += [
                f"{change.place.label} at temperature {change.place.temperature:g} is worse than the baseline: "
                f"{change.after:.3f} tokens per step, it had {change.before:.3f} (difference {change.low:+.3f} to "
                f"{change.high:+.3f})"
                for change in self.changes
                if change.verdict == "worse"
            ]
        return reasons


def find(
    recipe: BenchmarkRecipe,
    collected: Shards,
    runs: Sequence[Shards],
    differences: Rows,
    survivals: Rows | None,
    probes: Rows | None,
    baseline: Shards | None,
) -> Findings:
    """Put together what the tasks of a benchmark gave."""
    spec = recipe.measure
    answers = collected.table("served")
    rows = answers.to_pylist()
    samples = pa.concat_tables([run.table("samples") for run in runs]).to_pylist()
    held = survivals.table.to_pylist() if survivals else []
    wired = probes.table.to_pylist() if probes else []
    earlier = baseline.table("served").to_pylist() if baseline else []
    return Findings(
        key=str(collected.lineage.get("key", "")),
        made_at=str(collected.lineage.get("made_at", "")),
        figures=served_figures(answers, collected.table("passes"), spec.context_edges, spec.bootstrap, recipe.seed),
        greedy=tuple(compare_greedy(rows)),
        differences=tuple(differences.table.to_pylist()),
        sampled=tuple(compare_samples(samples)),
        parity=parity(rows, held, recipe.parity.largest_gap, wired),
        changes=tuple(compare(rows, earlier, recipe.baseline.smallest_loss, spec.bootstrap, recipe.seed)),
    )
