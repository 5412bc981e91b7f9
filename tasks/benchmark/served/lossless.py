"""Greedy answers with a drafter against those without it, token for token, and what the target says where they differ.

Rounding differs between a verify step of several tokens and a step of one, so two tokens whose scores are nearly equal
may change places. Any other difference is a fault of the engine, or of the draft's wiring into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from schemas.errors import TargetError
from schemas.lossless import DIFFERENCES
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.task import artifact_task
from tasks.benchmark.served.figures import Place, Row
from tasks.benchmark.statistics import first_difference
from tasks.target.model import Target, load_target

ENDED = -1  # in place of a token where an answer has ended


@dataclass(frozen=True)
class Difference:
    """The first place at which an answer is not the plain one."""

    place: Place
    prompt_id: str
    position: int
    plain_token: int
    token: int
    prefix: tuple[int, ...]  # the prompt and what both answers begin with


@dataclass(frozen=True)
class Compared:
    """A place's greedy answers against the plain ones. `astray` follow another answer of an earlier turn."""

    place: Place
    compared: int
    astray: int
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> int:
        """Answers that are equal token for token."""
        return self.compared - len(self.differences)


@artifact_task(version="1", exclude=("target_spec", "compute"))
def judge_differences(
    target: Shards, runs: list[Shards], tolerance: float, target_spec: TargetSpec, compute: ComputeSpec
) -> Rows:
    """Every difference of greedy answers with its class; the target is loaded only if there is one.

    Args:
        target: the prepared target.
        runs: results of `measure_run`.
        tolerance: scores this near are a tie.
        target_spec: where the target is.
        compute: threads.
    """
    torch.set_num_threads(compute.training_threads)
    answers = pa.concat_tables([run.table("served") for run in runs])
    found = [one for compared in compare_greedy(answers.to_pylist()) for one in compared.differences]
    model: Target | None = None
    if found:
        try:
            model = load_target(target, target_spec)
        except TargetError:  # too large for this machine, say: then nobody can judge
            model = None
    return Rows(
        contract=DIFFERENCES.name, table=DIFFERENCES.table(_judged(found, model, tolerance), "differences of answers")
    )


def compare_greedy(rows: Iterable[Row]) -> list[Compared]:
    """Each place with a drafter at temperature 0 against the same engine and concurrency without one."""
    by_place: dict[Place, dict[str, Row]] = {}
    for row in rows:
        if row["temperature"] == 0:
            by_place.setdefault(Place.of(row), {})[row["prompt_id"]] = row
    places = sorted((place for place in by_place if place.steps), key=lambda place: place.order)
    return [_compare(place, by_place[place.plain], by_place[place]) for place in places if place.plain in by_place]


def _compare(place: Place, plain: dict[str, Row], own: dict[str, Row]) -> Compared:
    shared = sorted(set(plain) & set(own))
    same = [name for name in shared if plain[name]["prompt_ids"] == own[name]["prompt_ids"]]
    differences = []
    for name in same:
        right, found = plain[name]["output_ids"], own[name]["output_ids"]
        position = first_difference(right, found)
        if position is not None:
            prefix = (*own[name]["prompt_ids"], *right[:position])
            differences.append(
                Difference(place, name, position, _at(right, position), _at(found, position), tuple(prefix))
            )
    return Compared(place, len(same), len(shared) - len(same), tuple(differences))


def _at(ids: list[int], position: int) -> int:
    return ids[position] if position < len(ids) else ENDED


@torch.no_grad()
def _judged(found: Iterable[Difference], target: Target | None, tolerance: float) -> Iterator[dict[str, Any]]:
    for one in found:
        margin = below = None
        kind = "unjudged"
        if ENDED in (one.token, one.plain_token):
            kind = "real"  # one went on where the other had ended: no score decides that
        elif target is not None:
            ids = torch.tensor([one.prefix], device=target.device)
            scores = target.lm_head(target.hidden(ids)[:, -1])[0].double()
            margin = float(scores[one.plain_token] - scores[one.token])
            below = float(scores.max() - min(scores[one.plain_token], scores[one.token]))
            kind = "near_tie" if below <= tolerance else "real"
        yield {
            "prompt_id": one.prompt_id,
            **one.place._asdict(),
            "position": one.position,
            "plain_token": one.plain_token,
            "token": one.token,
            "kind": kind,
            "margin": margin,
            "below_best": below,
        }
