"""What a benchmark in engines says, as titled tables of text, the same for terminal, Markdown, page and Prefect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.benchmarking import BenchmarkRecipe
from tasks.benchmark.served.compare import Change
from tasks.benchmark.served.figures import Figures, Place, Row
from tasks.benchmark.served.findings import Findings
from tasks.benchmark.served.parity import shares

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A titled table with a sentence or two before it."""

    key: str
    title: str
    text: str
    headings: Cells
    rows: tuple[Cells, ...]


_PLACE = ("engine", "drafter", "steps/top-k/tokens", "temperature", "concurrency")
_ACCEPTANCE = ("acceptance length", "95 % interval", "rate", "accepted per position", "conditional")
_SPEED = ("tokens/s", "speed-up", "first token", "between tokens", "prompts")
ACCEPTANCE_HEADINGS = (*_PLACE, *_ACCEPTANCE, *_SPEED)
SHORT = (0, 1, 2, 3, 4, 5, 6, 8, 10, 11)  # columns of the first table that fit on a terminal


def sections_of(recipe: BenchmarkRecipe, findings: Findings, failures: Mapping[str, Exception]) -> list[Section]:
    """Every table that has rows."""
    limit = recipe.parity.largest_gap
    figures = findings.figures
    found = [
        Section(
            "acceptance",
            "Acceptance and speed",
            "Acceptance length is 1 + accepted drafts per verify step, from each engine's own counters; intervals are "
            "bootstraps over prompts. Speed-up is against the same engine without a drafter.",
            ACCEPTANCE_HEADINGS,
            tuple(map(figure_cells, figures.overall)),
        ),
        Section(
            "changes",
            "Against the baseline",
            f"The baseline is `{recipe.baseline.artifact}`; only prompts that both measured are compared, in pairs.",
            (*_PLACE, "before", "after", "95 % interval of the difference", "prompts", ""),
            tuple(map(_change, findings.changes)),
        ),
        _parity(findings, limit),
        Section(
            "lossless",
            "Greedy answers with and without a drafter",
            "Token for token, in the same engine at the same concurrency. A near tie is a place where the target gives "
            f"both tokens scores within {recipe.lossless.tie_tolerance:g} of each other, which rounding may decide.",
            (*_PLACE, "identical", "near ties", "real differences", "not judged", "other history"),
            tuple(_lossless(findings, one.place, one.identical, one.compared, one.astray) for one in findings.greedy),
        ),
        Section(
            "differences",
            "Where greedy answers differ",
            "The margin is the target's own score of the plain token less that of the other.",
            (*_PLACE, "prompt", "position", "plain token", "token", "margin", "class"),
            tuple(map(_difference, findings.differences)),
        ),
        Section(
            "samples",
            "Samples with and without a drafter",
            "The probability of samples as far apart as these if both have one distribution.",
            (*_PLACE, "prompts", "samples", "probability"),
            tuple(
                (*place_cells(one.place), str(one.prompts), f"{one.samples:,}", f"{one.probability:.3g}")
                for one in findings.sampled
            ),
        ),
        Section(
            "datasets",
            "By dataset",
            "",
            ("dataset", *ACCEPTANCE_HEADINGS),
            tuple((one.dataset, *figure_cells(one)) for one in figures.by_dataset if one.place.steps),
        ),
        Section(
            "contexts",
            "By length of the prompt",
            "",
            ("prompt tokens", *ACCEPTANCE_HEADINGS),
            tuple((one.bucket, *figure_cells(one)) for one in figures.by_context if one.place.steps),
        ),
        Section(
            "failures",
            "Runs that failed",
            "",
            ("run", "why"),
            tuple((label, str(why)) for label, why in failures.items()),
        ),
    ]
    return [section for section in found if section.rows]


def figure_cells(one: Figures) -> Cells:
    """The cells under ACCEPTANCE_HEADINGS."""
    return (
        *place_cells(one.place),
        number(one.length),
        interval(one.low, one.high),
        number(one.rate),
        " ".join(number(share) for share in one.joint) or "–",
        " ".join(number(share) for share in one.conditional) or "–",
        number(one.tokens_per_second, 1),
        _speed_up(one),
        f"{number(1000 * one.first_seconds, 0)} ms",
        f"{number(1000 * one.between_seconds, 1)} ms",
        str(one.prompts),
    )


def place_cells(place: Place) -> Cells:
    """The cells that say where a row comes from."""
    drafter = (place.engine, place.drafter, place.speculation or "–")
    return (*drafter, f"{place.temperature:g}", str(place.concurrency))


def number(value: float, digits: int = 3) -> str:
    """A figure, or a dash for none."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def interval(low: float, high: float, form: str = ".3f") -> str:
    """Both ends, or a dash."""
    return "–" if math.isnan(low) else f"{low:{form}} to {high:{form}}"


def _speed_up(one: Figures) -> str:
    if math.isnan(one.speed_up):
        return "–"
    spread = "" if math.isnan(one.speed_low) else f" ({one.speed_low:.2f} to {one.speed_high:.2f})"
    return f"{one.speed_up:.2f}×{spread}"


def _parity(findings: Findings, limit: float) -> Section:
    found = findings.parity
    rows: list[Cells] = []
    simulated = ""
    if found:
        positions = " ".join(number(share) for share in found.simulated)
        simulated = (
            f" Simulated acceptance, over every place of the answers as training measures it: {positions} "
            f"(length {1 + sum(found.simulated):.3f})."
        )
        for side in found.sides:
            counted, right = side.counted, side.foreseen
            positions = _pairs(shares(counted), shares(right)) if counted else "–"
            rows.append(
                (
                    *place_cells(side.place),
                    f"{side.shared} of {side.shared + side.others}",
                    _pairs((counted.verify_steps,), (right.verify_steps,)) if counted else "–",
                    _pairs((counted.drafted,), (right.drafted,)) if counted else "–",
                    _pairs((counted.accepted,), (right.accepted,)) if counted else "–",
                    positions,
                    "exact" if side.exact else f"{100 * side.gap:.1f} %" if side.counted else "–",
                    side.verdict or "right",
                )
            )
    return Section(
        "parity",
        "Engines against the foreseen counts",
        "On greedy answers that are the same everywhere, what each engine counted / what it should have, found by one "
        f"pass of target and draft over the answers. A gap above {100 * limit:g} % fails." + simulated,
        (*_PLACE, "answers", "verify steps", "drafted", "accepted", "accepted per position", "gap", "verdict"),
        tuple(rows),
    )


def _change(one: Change) -> Cells:
    figures = (number(one.before), number(one.after), interval(one.low, one.high, "+.3f"), str(one.prompts))
    return (*place_cells(one.place), *figures, one.verdict)


def _difference(row: Row) -> Cells:
    tokens = (str(row["position"]), str(row["plain_token"]), str(row["token"]))
    margin = "–" if row["margin"] is None else f"{row['margin']:.4f}"
    return (*place_cells(Place.of(row)), row["prompt_id"][:12], *tokens, margin, row["kind"])


def _pairs(found: Sequence[float], right: Sequence[float]) -> str:
    return " ".join(f"{a}/{b}" if isinstance(a, int) else f"{a:.3f}/{b:.3f}" for a, b in zip(found, right, strict=True))


def _lossless(findings: Findings, place: Place, identical: int, compared: int, astray: int) -> Cells:
    kinds = [row["kind"] for row in findings.differences if Place.of(row) == place]
    counts = (kinds.count(kind) for kind in ("near_tie", "real", "unjudged"))
    return (*place_cells(place), f"{identical} of {compared}", *map(str, counts), str(astray))
