"""Simulated acceptance: chains, not independent steps; the full vocabulary; no chain counts past its sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tasks.train.gradient import crew_of
from tasks.train.loader import SequenceStore
from tasks.train.simulated import HeldOut, SequenceChains, SimulatedAcceptance, Survey, best_ids, surviving
from tests.train.small import random_teacher, small_draft, small_test
from tests.train.states import small_states


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def counted(guesses: list[Tensor], best: Tensor) -> SimulatedAcceptance:
    return SequenceChains("one", 10, surviving(guesses, best)).count()


def test_a_chain_ends_at_its_first_miss() -> None:
    found = counted([ids(1, 9, 3, 4), ids(2, 3, 4), ids(3, 9)], best=ids(1, 2, 3, 4))
    assert found.chains == [4, 3, 2]
    assert found.survived == [3, 2, 1]  # row 1 hits in step 1, but its chain ended in step 0
    assert found.length == 1 + 3 / 4 + 2 / 3 + 1 / 2


def test_a_perfect_draft_has_the_full_length() -> None:
    best = ids(5, 6, 7, 8, 9)
    assert counted([best, best[1:], best[2:]], best).length == 4


def test_steps_without_chains_add_nothing() -> None:
    assert counted([ids(5), ids(), ids()], best=ids(5)).acceptance == [1, 0, 0]


def test_chains_are_told_apart_by_the_tokens_they_follow() -> None:
    chains = SequenceChains("one", 10, surviving([ids(1, 9, 3, 4), ids(2, 3, 4)], ids(1, 2, 3, 4)))
    short, long = chains.count(range(12)), chains.count(range(12, 100))
    assert (short.survived, short.chains) == ([1, 1], [2, 2])  # rows that follow 10 and 11 tokens
    assert (long.survived, long.chains) == ([2, 1], [2, 1])
    assert chains.count(range(100, 200)).chains == [0, 0]


def test_the_interval_is_that_of_resampled_sequences() -> None:
    good, bad = SimulatedAcceptance([9, 4], [10, 8]), SimulatedAcceptance([1, 0], [10, 8])
    same = Survey([good] * 20)
    assert same.interval(200, 0) == pytest.approx((same.total().length,) * 2)
    mixed = Survey([good, bad] * 20)
    low, high = mixed.interval(2000, 0)
    assert low < mixed.total().length < high
    spread = (good.length - bad.length) / 2 / 40**0.5  # of the mean of forty draws of two equally likely values
    assert (low, high) == pytest.approx(
        (mixed.total().length - 1.96 * spread, mixed.total().length + 1.96 * spread), abs=0.03
    )


def test_best_ids_do_not_depend_on_blocks() -> None:
    states, head = torch.randn(2, 50, 7)
    assert torch.equal(best_ids(states, head), (states @ head.T).argmax(-1))
    assert best_ids(states[:0], head).shape == (0,)


def test_held_out_sequences_are_measured_in_the_full_vocabulary(store: Path) -> None:
    draft = small_draft(torch.float32)
    test, teacher = small_test(draft, dtype=torch.float32), random_teacher(dtype=torch.float32)
    found = SequenceStore(small_states(), "heldout")
    with crew_of(1) as one, crew_of(2) as two:
        counted = HeldOut(found, teacher.head).measure(draft, test, one)
        assert HeldOut(found, teacher.head).measure(draft, test, two) == counted
    survived, chains = [0] * 3, [0] * 3
    for number in range(len(found)):
        sequence = found.read(number)
        outputs = test.unroll(draft, [sequence])
        for row in range(sequence.served):
            alive = True
            for step in range(min(3, sequence.served - row)):
                guess = draft.target_ids()[draft.logits(outputs[step][row]).argmax()]
                right = (teacher.head @ sequence.teacher_states()[row + step].float()).argmax()
                alive = alive and bool(guess == right)
                survived[step] += alive
                chains[step] += 1
    assert (counted.survived, counted.chains) == (survived, chains)
