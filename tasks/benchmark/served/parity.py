"""Engines side by side: what each counted on the same greedy answers, against what it should have counted.

At temperature 0 nothing is left to chance, so the counts of an engine that is wired rightly are exactly the foreseen
ones. Where they are not, the wiring that foresees them best is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from schemas.parity import AS_CONFIGURED
from tasks.benchmark.served.figures import Place, Row
from tasks.benchmark.served.simulated import walk
from tasks.benchmark.served.spoken import Counts

_RULES = {"llamacpp": "fitting"}  # how engines count an answer's last step; the others count it whole
_FEW = 20  # expected acceptances at a position below which its share says little
_EXPLAINS = 0.02  # largest distance between shares at which a wiring explains an engine's

_IDS = "eagle_aux_hidden_state_layer_ids in config.json"
_ADVICE = {
    "layers one lower": f"it captures one layer too low: {_IDS} are read as inputs of layers where outputs are meant",
    "layers one higher": f"it captures one layer too high: {_IDS} are read as outputs of layers where inputs are meant",
    "rope_theta not read": "it does not read rope_theta: write both rope_theta and rope_parameters into config.json",
    "rope scaling not read": "it does not read the rope scaling: write both rope_scaling and rope_parameters",
}


@dataclass(frozen=True)
class Side:
    """One engine on the answers that it shares with the reference.

    Attributes:
        shared: answers whose prompt and output are those of the reference.
        others: answers that are not.
        counted: what the engine says; None if it does not say it per answer.
        foreseen: what it should have said.
        gap: the larger of the relative distances of accepted drafts per step and of each position's share that is
            common enough; NaN if nothing can be said.
        verdict: what to look at; empty where the gap is within the limit.
    """

    place: Place
    shared: int
    others: int
    counted: Counts | None
    foreseen: Counts
    gap: float
    verdict: str

    @property
    def exact(self) -> bool:
        """Whether every count is the foreseen one."""
        return self.counted == self.foreseen


@dataclass(frozen=True)
class Parity:
    """All engines, and the draft's simulated acceptance over every place of the answers.

    Attributes:
        simulated: per position, share of all places from which a chain survives it: the figure that training gives.
        sides: the engines.
    """

    steps: int
    simulated: tuple[float, ...]
    sides: tuple[Side, ...]

    @property
    def failed(self) -> tuple[Side, ...]:
        """Sides with too large a gap."""
        return tuple(side for side in self.sides if side.verdict)


def parity(
    rows: Iterable[Row], survivals: Sequence[Row], largest_gap: float, probes: Sequence[Row] = ()
) -> Parity | None:
    """Compare all engines' drafts at temperature 0, chains only.

    Args:
        rows: of SERVED, all runs.
        survivals: of SURVIVALS, as configured.
        largest_gap: above which a side fails.
        probes: of SURVIVALS, other wirings; without them a verdict says only where the gap is.

    Returns:
        None if no engine ran such a chain.
    """
    if not survivals:
        return None
    steps = survivals[0]["steps"]
    places: dict[Place, list[Row]] = {}
    for row in rows:
        place = Place.of(row)
        if place.drafter == "draft" and place.top_k == 1 and place.steps == steps and place.temperature == 0:
            places.setdefault(place, []).append(row)
    least: dict[str, int] = {}
    for place in places:
        least[place.engine] = min(place.concurrency, least.get(place.engine, place.concurrency))
    variants: dict[str, dict[str, Row]] = {AS_CONFIGURED: {row["prompt_id"]: row for row in survivals}}
    for row in probes:
        variants.setdefault(row["variant"], {})[row["prompt_id"]] = row
    sides = tuple(
        _side(place, places[place], variants, steps, largest_gap)
        for place in sorted(places, key=lambda place: place.order)
        if place.concurrency == least[place.engine]
    )
    return Parity(steps, _simulated(survivals, steps), sides) if sides else None


def _simulated(survivals: Sequence[Row], steps: int) -> tuple[float, ...]:
    """A chain counts at a position only if the answer has that token."""
    shares = []
    for step in range(steps):
        chains = [s for row in survivals for s in row["survived"][: len(row["survived"]) - step]]
        shares.append(sum(s > step for s in chains) / len(chains) if chains else math.nan)
    return tuple(shares)


def _side(
    place: Place, rows: Sequence[Row], variants: Mapping[str, Mapping[str, Row]], steps: int, largest_gap: float
) -> Side:
    reference = variants[AS_CONFIGURED]
    shared = [
        row
        for row in rows
        if (right := reference.get(row["prompt_id"]))
        and (row["prompt_ids"], row["output_ids"]) == (right["prompt_ids"], right["output_ids"])
    ]
    counted = _counted(shared, steps)
    foreseen = {name: _foreseen(place, shared, held, steps) for name, held in variants.items()}
    right = foreseen[AS_CONFIGURED]
    gap = gap_of(counted, right) if counted else math.nan
    verdict = ""
    if not shared:
        verdict = "no answer is that of the reference: it serves another model, or not losslessly"
    elif counted is None:
        verdict = "it does not say its counts per answer: run it with concurrency 1, or with per-request metrics"
    elif gap > largest_gap:
        verdict = _verdict(counted, right, foreseen)
    return Side(place, len(shared), len(rows) - len(shared), counted, right, gap, verdict)


def _counted(rows: Sequence[Row], steps: int) -> Counts | None:
    if not rows or any(row["verify_steps"] is None or row["accepted_by_position"] is None for row in rows):
        return None
    totals = [sum(row[name] for row in rows) for name in ("verify_steps", "drafted", "accepted")]
    places = tuple(sum(row["accepted_by_position"][place] for row in rows) for place in range(steps))
    return Counts(totals[0], totals[1], totals[2], places)


def _foreseen(place: Place, rows: Sequence[Row], held: Mapping[str, Row], steps: int) -> Counts:
    rule = _RULES.get(place.engine, "whole")
    each = [
        walk(held[row["prompt_id"]]["survived"], len(row["output_ids"]), steps, rule)
        for row in rows
        if row["prompt_id"] in held
    ]
    places = tuple(sum(one.by_position[at] for one in each if one.by_position) for at in range(steps))
    return Counts(
        sum(one.verify_steps for one in each),
        sum(one.drafted for one in each),
        sum(one.accepted for one in each),
        places,
    )


def shares(counts: Counts) -> tuple[float, ...]:
    """Per position, the share of verify steps that accepted it."""
    return tuple(count / max(counts.verify_steps, 1) for count in counts.by_position or ())


def gap_of(counted: Counts, foreseen: Counts) -> float:
    """The largest relative distance, of accepted drafts per step and of every position that is common enough."""
    pairs = [(counted.accepted / max(counted.verify_steps, 1), foreseen.accepted / max(foreseen.verify_steps, 1))]
    both = zip(shares(counted), shares(foreseen), foreseen.by_position or (), strict=True)
    pairs += [(one, other) for one, other, count in both if count >= _FEW]
    return max(abs(one - other) / other if other else float(one > 0) for one, other in pairs)


def _verdict(counted: Counts, right: Counts, foreseen: Mapping[str, Counts]) -> str:
    """What explains the counts best, and where they depart from the foreseen ones."""
    found, wanted = shares(counted), shares(right)
    said = " ".join(f"{a:.3f}/{b:.3f}" for a, b in zip(found, wanted, strict=True))
    where = f"accepted by position, counted/foreseen: {said}"
    distances = {
        name: max(abs(a - b) for a, b in zip(found, shares(counts), strict=True)) for name, counts in foreseen.items()
    }
    best = min(distances, key=lambda name: distances[name])
    if best != AS_CONFIGURED and distances[best] <= _EXPLAINS:
        advice = _ADVICE.get(best, f"its reading of the draft differs: {best}")
        return f"{advice}. Its counts are those of the draft wired with {best!r}. {where}"
    if found and wanted and abs(found[0] - wanted[0]) <= _EXPLAINS:
        return (
            "the first position is right, later ones are not: the draft's own steps go wrong (its key-value cache, "
            f"positions, rope, or the attention backend of the verify step). {where}"
        )
    return (
        "the first position is wrong, and no known miswiring explains it: look at the auxiliary layers, at norms "
        f"(norm_before_residual, norm_output, fc_norm), at the embedding, at d2t, and at the template. {where}"
    )
