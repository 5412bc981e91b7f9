"""Every loss against its formula, written out and differentiated by torch."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from tasks.train import fused_loss
from tasks.train.losses import LOSSES, LossKind, Taught
from tests.train.small import random_sequence, random_teacher, small_draft, small_test

BATCH = [random_sequence(5, 9, 1), random_sequence(1, 6, 2), random_sequence(7, 3, 3), random_sequence(3, 1, 4)]
DECAY = 3.0  # small_test's


def formula(kind: LossKind, scores: Tensor, restricted: Tensor, whole: Tensor) -> Tensor:
    """The losses of rows, (rows,): scores of the draft, of the target within the draft vocabulary, and of all of it."""
    log_q, t = scores.log_softmax(-1), restricted.softmax(-1)
    divergence = (t * (t.log() - log_q)).sum(-1)
    p = (restricted - whole.logsumexp(-1, keepdim=True)).exp()
    alpha = torch.minimum(p, log_q.exp()).sum(-1)
    if kind == "cross_entropy":
        return -(t * log_q).sum(-1)
    if kind == "kl":
        return divergence
    if kind == "lk_alpha":
        return -alpha.log()
    weight = torch.exp(-DECAY * alpha.detach())
    return weight * divergence + (1 - weight) * (1 - alpha)


@pytest.mark.parametrize("block", [2**21, 61 * 3])
@pytest.mark.parametrize("kind", LOSSES)
def test_value_and_gradients_are_those_of_the_formula(
    kind: LossKind, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_loss, "_BLOCK_SCORES", block)
    draft, steps = small_draft(), 3
    test, teacher = small_test(draft, steps, loss=kind), random_teacher()
    parameters = list(draft.parameters())
    found = test.losses(draft, BATCH)

    factors, sums = [0.8**step for step in range(steps)], [torch.zeros((), dtype=torch.float64)] * steps
    for sequence in BATCH:
        whole = sequence.teacher_states().double() @ teacher.head.T
        for step, output in enumerate(test.unroll(draft, [sequence])):
            rows = max(sequence.served - step, 0)
            taught = whole[step : step + rows]
            scores = draft.logits(output[:rows])
            sums[step] = sums[step] + formula(kind, scores, taught[:, draft.target_ids()], taught).sum()
    counts = test.counts(BATCH)
    means = [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]
    loss = sum((f * mean for f, mean in zip(factors, means, strict=True)), torch.zeros(())) / sum(factors)

    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.sums, torch.stack(sums).detach())
    for one, other in zip(
        torch.autograd.grad(found.loss, parameters), torch.autograd.grad(loss, parameters), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_the_acceptance_term_does_not_renormalise_the_target() -> None:
    """Half of the target's probability lies outside the draft vocabulary, so no draft is kept more often than half."""
    quarters = torch.full((1, 4), 0.25, dtype=torch.float64)
    entropy = torch.full((1,), math.log(4), dtype=torch.float64)
    taught = Taught(quarters, entropy, torch.full((1,), 0.5, dtype=torch.float64))
    found = {kind: loss(quarters.clone(), entropy, taught, DECAY).item() for kind, loss in LOSSES.items()}
    assert found["kl"] == 0
    assert found["lk_alpha"] == pytest.approx(math.log(2))
    assert found["lk_lambda"] == pytest.approx((1 - math.exp(-DECAY / 2)) / 2)


def test_impossible_guesses_cost_much_but_not_infinity() -> None:
    draft = small_draft(torch.float32)
    with torch.no_grad():
        draft.lm_head.weight.mul_(1e4)
    totals = small_test(draft, dtype=torch.float32, loss="lk_alpha").losses(draft, BATCH)
    assert totals.loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(totals.loss, list(draft.parameters())))


@pytest.mark.parametrize("kind", LOSSES)
def test_bfloat16_computes_about_the_same_from_float32_weights(kind: LossKind) -> None:
    draft = small_draft(torch.float32)
    test = small_test(draft, dtype=torch.float32, loss=kind)
    names, parameters = zip(*draft.named_parameters(), strict=True)
    exact = test.losses(draft, BATCH)
    rough = dataclasses.replace(test, bfloat16=True).losses(draft, BATCH)
    assert rough.loss.dtype == torch.float32
    assert rough.loss.item() == pytest.approx(exact.loss.item(), rel=0.05)
    assert rough.loss.item() != exact.loss.item()
    wanted = torch.autograd.grad(exact.loss, parameters)
    for name, one, other in zip(names, torch.autograd.grad(rough.loss, parameters), wanted, strict=True):
        assert one.dtype == torch.float32
        agreement = torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)
        assert agreement > 0.98, name
