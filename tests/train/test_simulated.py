"""Simulated acceptance: chains, not independent steps; the full vocabulary; no chain counts past its sequence."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tasks.train.gradient import crew_of
from tasks.train.loader import SequenceStore
from tasks.train.simulated import HeldOut, best_ids, count_survivors
from tests.train.small import random_teacher, small_draft, small_test
from tests.train.states import small_states


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_a_chain_ends_at_its_first_miss() -> None:
    counted = count_survivors([ids(1, 9, 3, 4), ids(2, 3, 4), ids(3, 9)], best=ids(1, 2, 3, 4))
    assert counted.chains == [4, 3, 2]
    assert counted.survived == [3, 2, 1]  # row 1 hits in step 1, but its chain ended in step 0
    assert counted.length == 1 + 3 / 4 + 2 / 3 + 1 / 2


def test_a_perfect_draft_has_the_full_length() -> None:
    best = ids(5, 6, 7, 8, 9)
    assert count_survivors([best, best[1:], best[2:]], best).length == 4


def test_steps_without_chains_add_nothing() -> None:
    counted = count_survivors([ids(5), ids(), ids()], best=ids(5))
    assert counted.acceptance == [1, 0, 0]


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
