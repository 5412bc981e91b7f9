"""A baseline says better, worse or the same, with the interval of paired differences."""

from __future__ import annotations

import pytest

from tasks.benchmark.served.compare import compare
from tests.benchmark.served.rows import served_row

BEFORE = [served_row(f"{n}", (2, 1, n % 3)) for n in range(12)]


def changed(by: int, every: int = 1) -> list[dict[str, object]]:
    return [
        served_row(f"{n}", (2 + by * (n % every == 0), 1, n % 3)) if by else served_row(f"{n}", (2, 1, n % 3))
        for n in range(12)
    ]


def test_the_same_counts_are_the_same() -> None:
    (change,) = compare(changed(0), BEFORE, 0.0, 500, 0)
    assert (change.verdict, change.difference, change.low, change.high) == ("same", 0, 0, 0)
    assert change.prompts == 12


def test_a_gain_of_every_prompt_is_better_and_a_loss_worse() -> None:
    (better,) = compare(changed(1), BEFORE, 0.0, 500, 0)
    assert better.verdict == "better"
    assert better.difference == pytest.approx(1 / 3)
    assert better.low == pytest.approx(1 / 3), "pairs differ by the same everywhere, so the interval is a point"
    (worse,) = compare(changed(-1), BEFORE, 0.0, 500, 0)
    assert worse.verdict == "worse"
    assert compare(changed(-1), BEFORE, 0.5, 500, 0)[0].verdict == "same", "a loss this small was allowed"


def test_a_few_prompts_do_not_make_a_change() -> None:
    rows = [*changed(0)]
    rows[0] = served_row("0", (3, 1, 0))
    rows[1] = served_row("1", (1, 1, 1))
    assert compare(rows, BEFORE, 0.0, 500, 0)[0].verdict == "same"


def test_only_what_both_measured_is_compared() -> None:
    other = [served_row("0", (2, 1, 0), temperature=0.7), served_row("9x", (3, 3, 3))]
    assert compare(other, BEFORE, 0.0, 500, 0) == []
