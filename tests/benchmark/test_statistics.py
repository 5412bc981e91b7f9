"""Acceptance figures: they agree with each other, with the counts, and with a benchmark whose truth is known."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.measures import ACCEPTANCE
from tasks.benchmark.statistics import bootstrap_interval, first_difference, measure


def row(prompt: int, by_position: list[int], steps: int, **changes: Any) -> dict[str, Any]:
    return {
        "prompt_id": f"{prompt:032x}",
        "dataset": "chat",
        "drafter": "trained",
        "temperature": 0.0,
        "chain": len(by_position),
        "output_ids": [5, 6, 2],
        "verify_steps": steps,
        "drafted": steps * len(by_position),
        "accepted": sum(by_position),
        "accepted_by_position": by_position,
    } | changes


@st.composite
def measured_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of one drafter, chain of 3."""
    rows = []
    for prompt in range(draw(st.integers(1, 8))):
        steps = draw(st.integers(0, 30))
        first = draw(st.integers(0, steps))
        second = draw(st.integers(0, first))
        third = draw(st.integers(0, second))
        rows.append(row(prompt, [first, second, third], steps, dataset=draw(st.sampled_from(["chat", "code"]))))
    return rows


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return ACCEPTANCE.table(rows)


@given(measured_rows())
@settings(max_examples=60, deadline=None)
def test_figures_agree_with_each_other(rows: list[dict[str, Any]]) -> None:
    measured = measure(table(rows), 100, 0)
    (overall,) = measured.overall
    assert overall.verify_steps == sum(a.verify_steps for a in measured.by_dataset)
    assert overall.prompts == len(rows) == sum(a.prompts for a in measured.by_dataset)
    if not overall.verify_steps:
        assert math.isnan(overall.length)
        assert math.isnan(overall.low)
        return
    assert overall.length == pytest.approx(1 + sum(overall.joint))
    assert overall.length == pytest.approx(1 + overall.rate * overall.chain)
    assert overall.joint == tuple(sorted(overall.joint, reverse=True))
    assert 1 <= overall.low <= overall.high <= 1 + overall.chain
    product = np.cumprod(overall.conditional)
    for joint, chained in zip(overall.joint, product, strict=True):
        assert math.isnan(chained) or chained == pytest.approx(joint)
    lengths = [a.length for a in measured.by_dataset if not math.isnan(a.length)]
    assert min(lengths) - 1e-9 <= overall.length <= max(lengths) + 1e-9


@given(measured_rows(), st.randoms())
@settings(max_examples=30, deadline=None)
def test_shares_do_not_depend_on_the_order_of_rows(rows: list[dict[str, Any]], random: Any) -> None:
    one = measure(table(rows), 100, 0).overall[0]
    random.shuffle(rows)
    other = measure(table(rows), 100, 0).overall[0]
    assert (one.joint, one.verify_steps) == (other.joint, other.verify_steps)


def test_equal_prompts_have_an_interval_of_no_width() -> None:
    (figures,) = measure(table([row(p, [6, 3, 0], 12) for p in range(5)]), 100, 0).overall
    assert (figures.low, figures.length, figures.high) == pytest.approx((1.75, 1.75, 1.75))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        steps = random.integers(10, 40, 40)
        accepted = random.binomial(steps, random.beta(8, 8, 40))  # prompts differ, their mean is 0.5
        low, high = bootstrap_interval(accepted, steps, 400, trial)
        covered += low <= 1.5 <= high
    assert 180 <= covered <= 198


def test_the_same_seed_gives_the_same_interval() -> None:
    accepted, steps = np.array([3, 9, 1]), np.array([10, 12, 8])
    assert bootstrap_interval(accepted, steps, 300, 4) == bootstrap_interval(accepted, steps, 300, 4)
    assert bootstrap_interval(accepted, steps, 300, 4) != bootstrap_interval(accepted, steps, 300, 5)


def test_drafters_and_temperatures_are_kept_apart() -> None:
    rows = [
        row(1, [4, 0], 8),
        row(1, [2, 0], 8, temperature=0.7),
        row(1, [0, 0], 8, drafter="untrained"),
        row(1, [], 2, drafter="none"),
    ]
    measured = measure(table(rows), 100, 0)
    assert [(a.drafter, a.temperature, a.length) for a in measured.overall] == [
        ("none", 0.0, 1.0),
        ("untrained", 0.0, 1.0),
        ("trained", 0.0, 1.5),
        ("trained", 0.7, 1.25),
    ]
    trained, untrained = measured.of("trained", 0.0), measured.of("untrained", 0.0)
    assert trained is not None
    assert untrained is not None
    assert trained.exceeds(untrained)
    assert not untrained.exceeds(trained)
    assert measured.of("ngram", 0.0) is None


def test_greedy_outputs_that_differ_are_listed_with_their_first_difference() -> None:
    outputs = {"none": [[1, 2, 3], [4, 5, 2], [7, 2]], "ngram": [[1, 2, 3], [4, 6, 2], [7, 2]]}
    rows = [
        row(prompt, [], 2, drafter=drafter, output_ids=ids)
        for drafter, all_ids in outputs.items()
        for prompt, ids in enumerate(all_ids)
    ]
    rows.append(row(0, [0], 2, drafter="ngram", temperature=0.7, output_ids=[9]))
    identity = measure(table(rows), 100, 0).identity_of("ngram")
    assert identity is not None
    assert (identity.compared, identity.identical) == (3, 2)
    assert [(d.prompt_id, d.position) for d in identity.differing] == [(f"{1:032x}", 1)]


def test_without_plain_decoding_nothing_is_compared() -> None:
    assert measure(table([row(0, [1], 2)]), 100, 0).identity == ()


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_first_difference_is_where_the_common_beginning_ends(one: list[int], other: list[int]) -> None:
    at = first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]
