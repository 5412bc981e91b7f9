"""Samples of one distribution pass, those of another do not."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.benchmark.served.sampling import compare_samples, one_distribution
from tests.benchmark.served.rows import served_row


def draws(seed: int, tilt: float = 0.0, count: int = 3000) -> list[tuple[int, ...]]:
    odds = np.array([0.4 - tilt, 0.3 + tilt, 0.15, 0.1, *[0.05 / 50] * 50])
    tokens = np.random.default_rng(seed).choice(len(odds), size=count, p=odds / odds.sum())
    return [(int(token),) for token in tokens]


def test_the_probability_is_uniform_where_both_are_one() -> None:
    odds = np.array([one_distribution(draws(2 * n), draws(2 * n + 1)) for n in range(200)])
    assert 0.02 < (odds < 0.1).mean() < 0.2
    assert 0.4 < odds.mean() < 0.6


def test_another_distribution_is_seen() -> None:
    assert one_distribution(draws(0), draws(1, tilt=0.08)) < 1e-6


def test_equal_certain_answers_say_nothing() -> None:
    assert one_distribution([(1,)] * 50, [(1,)] * 60) == 1.0


def test_places_are_held_against_the_same_without_a_drafter() -> None:
    names = ("prompt_id", "engine", "drafter", "steps", "top_k", "draft_tokens", "temperature", "concurrency")

    def rows(steps: tuple[int, ...], tilt: float) -> list[dict[str, Any]]:
        base = {name: served_row("a", steps, temperature=0.7)[name] for name in names}
        return [base | {"output_ids": list(one)} for one in draws(len(steps), tilt)]

    (fair,) = compare_samples([*rows((), 0), *rows((1,), 0)])
    assert fair.probability > 1e-4
    assert (fair.prompts, fair.samples) == (1, 3000)
    (skewed,) = compare_samples([*rows((), 0), *rows((1,), 0.08)])
    assert skewed.probability < 1e-6
