"""The linear layers give what torch's own give, in every dtype and shape, with all gradients."""

from __future__ import annotations

import pytest
import torch

from tasks.draft.linear import Linear, product


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_equal_torchs(rows: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, 12).to(dtype), torch.randn(7, 12).to(dtype)
    torch.testing.assert_close(product(x, weight), torch.nn.functional.linear(x, weight))


def test_leading_dimensions_are_kept() -> None:
    layer, x = Linear(12, 7), torch.randn(2, 5, 12)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ layer.weight.T)


@pytest.mark.parametrize("shape", [(0, 12), (1, 12), (9, 12), (2, 5, 12)])
def test_gradients_equal_torchs(shape: tuple[int, ...]) -> None:
    layer, x = Linear(12, 7), torch.randn(shape, requires_grad=True)
    into = torch.randn(*shape[:-1], 7)
    found = torch.autograd.grad(layer(x), (x, layer.weight), into)
    right = torch.autograd.grad(torch.nn.functional.linear(x, layer.weight), (x, layer.weight), into)
    torch.testing.assert_close(found, right)


def test_gradients_of_a_sum_equal_torchs() -> None:
    """Its incoming gradient is one number, seen as a matrix."""
    layer, x = Linear(12, 7), torch.randn(8, 12, requires_grad=True)
    found = torch.autograd.grad(layer(x).sum(), (x, layer.weight))
    right = torch.autograd.grad(torch.nn.functional.linear(x, layer.weight).sum(), (x, layer.weight))
    torch.testing.assert_close(found, right)


def test_a_frozen_weight_gets_no_gradient() -> None:
    layer, x = Linear(12, 7), torch.randn(4, 12, requires_grad=True)
    layer.requires_grad_(False)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None
