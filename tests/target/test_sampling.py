"""Drawn tokens follow the target's distribution, and depend on seed, prompt and temperature only."""

import numpy as np
import pytest
import torch

from tasks.target.sampling import draw, next_token_probabilities, row_uniforms

PROMPT = "0" * 32


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 1 - 2**-24), (torch.float64, 1 - 2**-53)])
def test_draw_inverts_the_distribution_function_exactly(dtype: torch.dtype, largest: float) -> None:
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, largest], dtype=dtype)
    drawn = draw(probabilities.expand(len(uniforms), -1), uniforms)
    assert drawn.tolist() == [1, 1, 3, 3, 4, 4]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    scores = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0)) * 4
    probabilities = next_token_probabilities(scores, 0.7, 0.5)
    for uniform in (0.0, 0.5, 1 - 2**-24):
        drawn = draw(probabilities, torch.full((64,), uniform))
        assert (probabilities.gather(1, drawn[:, None]) > 0).all()


def test_drawn_tokens_are_distributed_as_the_target_says() -> None:
    scores = torch.tensor([2.0, 0.5, -1.0, 0.0, 1.2, -0.3, 0.8, 1.9])
    probabilities = next_token_probabilities(scores, 0.7)
    count = 200_000
    uniforms = torch.from_numpy(row_uniforms(3, PROMPT, 0.7, count))
    drawn = draw(probabilities.expand(count, -1), uniforms)
    observed = torch.bincount(drawn, minlength=8).double()
    expected = torch.softmax(scores.double() / 0.7, -1) * count
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 24.3  # 99.9 % of samples with 7 degrees of freedom


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    scores = torch.log(torch.tensor([[0.1, 0.5, 0.15, 0.25]]))
    assert torch.allclose(next_token_probabilities(scores, 1.0, 0.7), torch.tensor([[0.0, 2 / 3, 0.0, 1 / 3]]))
    assert torch.allclose(next_token_probabilities(scores, 1.0, 0.5), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("other", [(4, PROMPT, 0.7), (3, "1" * 32, 0.7), (3, PROMPT, 0.8)])
def test_numbers_belong_to_seed_prompt_and_temperature(other: tuple[int, str, float]) -> None:
    numbers = row_uniforms(3, PROMPT, 0.7, 16)
    assert np.array_equal(numbers, row_uniforms(3, PROMPT, 0.7, 64)[:16])
    assert not np.array_equal(numbers, row_uniforms(*other, 16))
