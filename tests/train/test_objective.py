"""The training-time test against the slow reference, its mask, and where gradients go."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.draft.config import SWITCHES
from tasks.draft.model import Eagle3Draft
from tasks.train import attention, fused_loss
from tasks.train.objective import TrainingTimeTest
from tasks.train.sequence import Sequence
from tests.train.slow_reference import Outcome, reference
from tests.train.small import random_sequence, small_draft, small_test

BATCH = [random_sequence(5, 9, 1), random_sequence(1, 6, 2), random_sequence(7, 3, 3), random_sequence(3, 1, 4)]


def slow(draft: Eagle3Draft, test: TrainingTimeTest, batch: list[Sequence]) -> Outcome:
    config = draft.config
    return reference(
        dict(draft.named_parameters()),
        [(s.token_ids, s.aux, s.last, s.last_from, s.prompt_length) for s in batch],
        test.embedding,
        test.objective.teacher_head,
        test.aux_scale,
        test.steps,
        test.decay,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.rms_norm_eps,
        config.rope_parameters["rope_theta"],
        frozenset(name for name in SWITCHES if getattr(config, name)),
    )


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float32, 1e-4)])
def test_loss_hits_and_gradients_equal_the_slow_reference(steps: int, dtype: torch.dtype, tolerance: float) -> None:
    compare_with_reference(small_draft(dtype), steps, dtype, tolerance)


@pytest.mark.parametrize(
    "changes",
    [
        {"fc_norm": True},
        {"norm_output": True},
        {"norm_before_residual": True},
        dict.fromkeys(SWITCHES, True),
        {"hidden_size": 10},
        {"hidden_size": 10, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 4, "fc_norm": True},
        {"num_attention_heads": 4, "num_key_value_heads": 4},
    ],
    ids=str,
)
def test_every_shape_and_switch_equals_the_slow_reference(changes: dict[str, Any]) -> None:
    compare_with_reference(small_draft(torch.float64, **changes), 3, torch.float64, 1e-5)


def compare_with_reference(draft: Eagle3Draft, steps: int, dtype: torch.dtype, tolerance: float) -> None:
    if draft.embed_tokens is not None:
        draft.embed_tokens.requires_grad_(False)
    test = small_test(draft, steps, dtype)
    names, parameters = zip(*((n, p) for n, p in draft.named_parameters() if p.requires_grad), strict=True)

    expected = slow(draft, test, BATCH)
    totals = test.losses(draft, BATCH)

    assert test.counts(BATCH) == expected.counts
    assert totals.hits.tolist() == expected.hits
    means = totals.sums / torch.tensor(expected.counts).clamp(min=1)
    torch.testing.assert_close(means, torch.tensor(expected.step_losses, dtype=dtype), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(totals.loss, expected.loss.to(dtype), rtol=tolerance, atol=tolerance)
    wanted = torch.autograd.grad(expected.loss, parameters)
    for name, found, right in zip(names, torch.autograd.grad(totals.loss, parameters), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance, msg=name)


def test_outputs_equal_the_slow_reference_row_by_row() -> None:
    draft = small_draft()
    test = small_test(draft)
    expected = slow(draft, test, BATCH).outputs
    found = {}
    for number, sequence in enumerate(BATCH):
        for step, rows in enumerate(test.unroll(draft, [sequence])):
            real = rows[: max(sequence.served - step, 0)]
            found |= {(number, sequence.first_served + n, step): row for n, row in enumerate(real)}
    assert found.keys() == expected.keys()
    for place, row in expected.items():
        torch.testing.assert_close(found[place], row, rtol=1e-5, atol=1e-5)


def test_blocks_of_queries_and_of_scores_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = small_draft()
    test = small_test(draft)
    parameters = list(draft.parameters())
    whole = test.losses(draft, BATCH)
    monkeypatch.setattr(attention, "_BLOCK_SCORES", 4 * 14 * 2)
    monkeypatch.setattr(fused_loss, "_BLOCK_SCORES", 24 * 2)
    blocks = test.losses(draft, BATCH)
    torch.testing.assert_close(blocks.loss, whole.loss)
    assert blocks.hits.tolist() == whole.hits.tolist()
    for one, other in zip(
        torch.autograd.grad(blocks.loss, parameters), torch.autograd.grad(whole.loss, parameters), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_parts_of_a_batch_add_up_to_the_batch() -> None:
    draft = small_draft()
    test = small_test(draft)
    counts = test.counts(BATCH)
    parts = sum(test.losses(draft, [sequence], counts).loss for sequence in BATCH)
    torch.testing.assert_close(parts, test.losses(draft, BATCH).loss)


def test_first_served_row_gets_a_gradient_and_rows_beyond_the_last_none() -> None:
    draft = small_draft()
    sequence = random_sequence(5, 9, 1)
    aux = sequence.aux.double().requires_grad_()
    test = small_test(draft)
    test.losses(draft, [dataclasses.replace(sequence, aux=aux)]).loss.backward()
    assert aux.grad is not None
    by_row = aux.grad.abs().amax(dim=1)
    assert by_row[sequence.first_served] > 1e-6
    assert (by_row[: len(sequence.token_ids) - 2] > 0).all()
    assert (by_row[len(sequence.token_ids) - 2 :] == 0).all()


def test_the_first_served_row_alone_trains_a_two_token_answer() -> None:
    draft = small_draft()
    sequence = random_sequence(5, 2, 1)
    test = small_test(draft)
    assert test.counts([sequence]) == [1, 0, 0]
    (gradient,) = torch.autograd.grad(test.losses(draft, [sequence]).loss, [draft.fc.weight])
    assert gradient.abs().max() > 1e-6


def test_prompt_rows_get_gradient_through_keys_and_values_only(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = small_draft()
    sequence = random_sequence(5, 9, 1)
    aux = sequence.aux.double().requires_grad_()
    traced = dataclasses.replace(sequence, aux=aux)
    original = draft.project_keys

    def without_gradient(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.detach() for part in original(*arguments))

    monkeypatch.setattr(draft, "project_keys", without_gradient)
    (gradient,) = torch.autograd.grad(small_test(draft).losses(draft, [traced]).loss, [aux])
    assert (gradient[: sequence.first_served] == 0).all()
    assert (gradient[sequence.first_served : -2].abs().amax(dim=1) > 0).all()


@pytest.mark.parametrize("answer", [1, 2, 3])
def test_short_answers_do_not_divide_by_zero(answer: int) -> None:
    draft = small_draft()
    totals = small_test(draft, steps=5).losses(draft, [random_sequence(4, answer, 1)])
    assert totals.loss.isfinite()
    gradients = torch.autograd.grad(totals.loss, list(draft.parameters()), allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_later_steps_train_the_first_through_the_fed_back_state() -> None:
    draft = small_draft()
    sequence = random_sequence(5, 9, 1)
    test = small_test(draft)
    last_step = test.unroll(draft, [sequence])[-1][: sequence.served - 2]
    (gradient,) = torch.autograd.grad(last_step.sum(), [draft.fc.weight])
    assert gradient.abs().max() > 1e-6


def test_a_frozen_head_gets_no_gradient() -> None:
    draft = small_draft()
    draft.lm_head.requires_grad_(False)
    loss = small_test(draft).losses(draft, BATCH).loss
    (fc,) = torch.autograd.grad(loss, [draft.fc.weight], retain_graph=True)
    assert fc.abs().max() > 0
    assert draft.lm_head.weight.grad is None
