"""A pilot's forecast: exact where all is known, and its intervals hold the truth about as often as they say."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from tasks.generate.forecast import Pilot, forecast
from tasks.generate.prices import Price

PRICE = Price(Decimal("0.000001"), Decimal("0.000002"))


def pilot(lengths: list[int], remaining: int = 100, limit: int = 10_000) -> Pilot:
    """A pilot with answers of these lengths."""
    return Pilot([10] * remaining, lengths, [4 * length for length in lengths], limit, PRICE)


def test_equal_answers_leave_no_doubt() -> None:
    named, run = forecast({"B3": pilot([50] * 32)}, tokens_per_second=10)
    one = named["B3"]
    assert (one.completion_tokens.low, one.completion_tokens.expected, one.completion_tokens.high) == (5000,) * 3
    assert one.usd.expected == pytest.approx(0.001 + 0.01)
    assert one.usd_worst == pytest.approx(0.001 + 2.0)
    assert one.hours
    assert one.hours.expected == pytest.approx(5000 / 10 / 3600)
    assert one.bytes_on_disk.expected == 20_000
    assert run == one


def test_the_run_is_the_sum_and_its_interval_narrower_than_that_of_the_parts() -> None:
    chance = np.random.default_rng(1)
    pilots = {name: pilot([int(length) for length in chance.exponential(900, 32)]) for name in "abcd"}
    named, run = forecast(pilots, 100)
    assert run.completion_tokens.expected == pytest.approx(
        sum(one.completion_tokens.expected for one in named.values())
    )
    assert run.usd_worst == pytest.approx(sum(one.usd_worst for one in named.values()))
    parts = sum(one.completion_tokens.high - one.completion_tokens.low for one in named.values())
    assert run.completion_tokens.high - run.completion_tokens.low < 0.8 * parts


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    chance, held = np.random.default_rng(7), 0
    for turn in range(200):
        lengths = np.minimum(chance.lognormal(6, 0.8, 32 + 300), 10_000).astype(int)
        named, _ = forecast({"B3": pilot([int(length) for length in lengths[:32]], remaining=300)}, 100, seed=turn)
        held += named["B3"].completion_tokens.low <= lengths[32:].sum() <= named["B3"].completion_tokens.high
    assert 0.85 <= held / 200 <= 0.99


def test_the_same_seed_gives_the_same_forecast() -> None:
    pilots = {"B3": pilot([5, 80, 900])}
    assert forecast(pilots, 10, seed=3) == forecast(pilots, 10, seed=3)


def test_no_interval_passes_the_limit_of_tokens() -> None:
    named, _ = forecast({"B3": pilot([100, 100, 100, 1], limit=100)}, 10)
    assert named["B3"].completion_tokens.high <= 100 * 100
    assert named["B3"].at_limit == 3


def test_a_dataset_that_is_done_costs_nothing_more() -> None:
    named, run = forecast({"B3": pilot([9], remaining=0), "B4": pilot([9, 9])}, 10)
    assert (named["B3"].usd.expected, named["B3"].usd_worst) == (0, 0)
    assert run.usd == named["B4"].usd


def test_too_small_a_pilot_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least"):
        forecast({"B3": pilot([9])}, 10)


def test_a_slower_rate_that_is_likely_widens_the_hours_alone() -> None:
    _, one = forecast({"B3": pilot([50] * 32)}, 10)
    _, wide = forecast({"B3": pilot([50] * 32)}, 10, slowest=4)
    assert one.hours
    assert wide.hours
    assert (wide.hours.low, wide.hours.expected) == (one.hours.low, one.hours.expected)
    assert wide.hours.high == pytest.approx(2.5 * one.hours.high)
    assert wide.usd == one.usd


def test_dollars_are_those_that_are_billed_and_the_worst_those_that_are_listed() -> None:
    _, listed = forecast({"B3": pilot([50] * 32)}, 10)
    _, billed = forecast({"B3": replace(pilot([50] * 32), billed_share=0.5)}, 10)
    assert billed.usd.expected == pytest.approx(listed.usd.expected / 2)
    assert billed.usd_worst == listed.usd_worst


def test_without_a_rate_hours_are_not_known() -> None:
    _, one = forecast({"B3": pilot([50] * 32)}, None)
    assert one.hours is None
    assert one.completion_tokens.expected == 5000


def test_no_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="rate"):
        forecast({"B3": pilot([9, 9])}, 0)
