"""Samples of short prompts with and without a drafter, and the test whether both have one distribution.

Speculative sampling is lossless in distribution only, so a single answer proves nothing: many first tokens do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from schemas.benchmarking import LosslessSpec
from schemas.lossless import SAMPLES
from tasks.benchmark.served.conversations import Asked, Conversations
from tasks.benchmark.served.figures import Place, Row
from tasks.benchmark.served.passes import Run, Setting, Speaker, setting_columns
from tasks.benchmark.served.spoken import Spoken

TOKENS = 3  # the prefill's, and two that a verify step gives
_IN_FLIGHT = 32
_FEWEST = 10  # samples of both in a cell of the test


@dataclass(frozen=True)
class Sampled:
    """The test of one place against the same without a drafter.

    Attributes:
        prompts: that were sampled by both.
        samples: of each side, all prompts.
        probability: of samples as far apart as these if both have one distribution, over all prompts together.
        prompt_id: the prompt on which they are farthest apart.
    """

    place: Place
    prompts: int
    samples: int
    probability: float
    prompt_id: str


def sample(
    run: Run, temperatures: Iterable[float], speaker: Speaker, conversations: Conversations, spec: LosslessSpec
) -> pa.Table:
    """Rows of SAMPLES: the first tokens of the shortest prompts, each prompt many times."""
    asked, _ = conversations.ready(0, {})
    shortest = sorted(asked, key=lambda one: (len(one.prompt.ids), one.prompt.prompt_id))[: spec.sampled_prompts]
    rows: list[dict[str, Any]] = []
    for temperature in temperatures:
        setting = Setting(temperature, _IN_FLIGHT)

        def take(turn: Asked, spoken: Spoken, setting: Setting = setting) -> None:
            rows.append(
                {
                    "prompt_id": turn.prompt.prompt_id.partition("/")[0],
                    **setting_columns(run, setting),
                    "output_ids": list(spoken.output_ids),
                }
            )

        # each sample has an id of its own, since our own loop draws by it
        copies = [
            replace(turn, prompt=replace(turn.prompt, prompt_id=f"{turn.prompt.prompt_id}/{number}"))
            for turn in shortest
            for number in range(spec.samples)
        ]
        speaker.speak(copies, setting, TOKENS, take)
    rows.sort(key=lambda row: (row["prompt_id"], row["temperature"], row["output_ids"]))
    return SAMPLES.table(rows)


def compare_samples(rows: Iterable[Row]) -> list[Sampled]:
    """Every place with a drafter against the same without one, where both were sampled."""
    by_place: dict[Place, dict[str, list[tuple[int, ...]]]] = {}
    for row in rows:
        by_place.setdefault(Place.of(row), {}).setdefault(row["prompt_id"], []).append(tuple(row["output_ids"]))
    compared = []
    for place in sorted((place for place in by_place if place.steps), key=lambda place: place.order):
        plain, own = by_place.get(place.plain, {}), by_place[place]
        shared = sorted(set(plain) & set(own))
        if not shared:
            continue
        odds = {prompt: one_distribution(plain[prompt], own[prompt]) for prompt in shared}
        worst = min(shared, key=lambda prompt: odds[prompt])
        samples = sum(len(own[prompt]) for prompt in shared)
        compared.append(Sampled(place, len(shared), samples, min(1.0, len(shared) * odds[worst]), worst))
    return compared


def one_distribution(one: Sequence[tuple[int, ...]], other: Sequence[tuple[int, ...]]) -> float:
    """The chi-square probability that two samples of sequences as far apart as these have one distribution.

    Rare sequences are pooled; where nothing is left to compare it is 1.
    """
    counts = Counter(one), Counter(other)
    cells = {key: (counts[0][key], counts[1][key]) for key in counts[0] | counts[1]}
    large = [cell for cell in cells.values() if sum(cell) >= _FEWEST]
    small = np.array([cell for cell in cells.values() if sum(cell) < _FEWEST] or [(0, 0)]).sum(axis=0)
    table = np.array([*large, tuple(small)] if small.sum() else large, dtype=float)
    freedom = len(table) - 1
    if freedom < 1:
        return 1.0
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), torch.tensor(statistic / 2).double()))
