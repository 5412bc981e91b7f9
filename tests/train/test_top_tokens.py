"""A teacher of likeliest tokens: with all tokens named it teaches what the states teach, with few nearly so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tasks.train.losses import LossKind
from tasks.train.lost_mass import outside_mass
from tasks.train.simulated import best_ids
from tasks.train.top_tokens import TopRows, draft_lookup
from tests.train.small import DRAFT_VOCAB, VOCAB, random_sequence, random_teacher, small_draft, small_test


def top_of(states: torch.Tensor, k: int) -> TopRows:
    found = torch.nn.functional.linear(states.float(), random_teacher().head.float()).log_softmax(-1).topk(k)
    return TopRows(found.indices, found.values)


@pytest.mark.parametrize("loss", ["cross_entropy", "kl", "lk_alpha", "lk_lambda"])
def test_with_every_token_named_loss_and_gradient_are_those_of_the_states(loss: LossKind) -> None:
    draft = small_draft(torch.float32)
    plain = small_test(draft, dtype=torch.float32, loss=loss)
    lookup = draft_lookup(draft.target_ids(), VOCAB)
    test = replace(plain, objective=replace(plain.objective, lookup=lookup))
    sequences = [random_sequence(3, 7, 0), random_sequence(4, 5, 1)]
    topped = [replace(sequence, last=sequence.last[:0], top=top_of(sequence.last, VOCAB)) for sequence in sequences]
    results = []
    for given in (sequences, topped):
        draft.zero_grad()
        totals = test.losses(draft, given)
        totals.loss.backward()
        results.append((totals, [p.grad.clone() for p in draft.parameters() if p.grad is not None]))
    (dense, wanted), (likeliest, found) = results
    torch.testing.assert_close(likeliest.loss, dense.loss, rtol=1e-4, atol=1e-5)
    assert torch.equal(likeliest.hits, dense.hits)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)


def test_what_is_not_named_shares_what_is_left() -> None:
    rows = TopRows(torch.tensor([[5, 2]]), torch.tensor([[0.5, 0.3]]).log())
    lookup = draft_lookup(torch.tensor([2, 4]), 12)
    assert lookup.tolist() == [-1, -1, 0, -1, 1, -1, -1, -1, -1, -1, -1, -1]
    torch.testing.assert_close(rows.scores(lookup, 2).exp(), torch.tensor([[0.3, 0.02]]))
    inside = lookup >= 0
    torch.testing.assert_close(rows.mass_outside(inside), torch.tensor([1 - 0.32]))
    assert rows.best.tolist() == [5]


def test_lost_mass_and_best_tokens_are_those_of_the_states() -> None:
    states, head = random_sequence(3, 30, 5).last, random_teacher().head.float()
    ids = torch.randperm(VOCAB)[:DRAFT_VOCAB]
    wanted = outside_mass(states.float(), head, ids)
    found = outside_mass(top_of(states, VOCAB), head, ids)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-3, atol=1e-5)
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(top_of(states, 1).best, best_ids(states.float(), head))
