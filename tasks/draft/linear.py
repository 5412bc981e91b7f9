"""Bias-free linear layers whose float32 products on a CPU go through oneDNN, forward and backward.

The products of a draft are then about twice as fast (tests/benchmarks/training.py). Everything else (float64, other
devices) is plain torch.

oneDNN compiles a kernel of 0.6 MB, in half a millisecond, for every shape it meets, and keeps the last 1024. So row
counts are rounded up with rows of zeros to a few sizes; who calls often does so once, with `stack_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.onednn import HAS_ONEDNN, onednn_linear

_SIZES_PER_OCTAVE = 8  # at most one row in eight is added, one in sixteen on average
_FEW_ROWS = 2  # up to here a product is bound by reading the weight, and oneDNN gains nothing


class Linear(nn.Linear):
    """`nn.Linear` without bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # (..., in) -> (..., out)
        if not torch.is_grad_enabled():
            return product(input, self.weight)
        if not _suits_onednn(input) and (input.device.type != "cpu" or _autocasts(input)):
            return functional.linear(input, self.weight)  # torch's own gradient knows of autocast
        return _Linear.apply(input, self.weight)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T without gradients: (..., in), (out, in) -> (..., out)."""
    if not _suits_onednn(x):
        return functional.linear(x, weight)
    rows = x.reshape(-1, x.shape[-1])
    size = round_rows(len(rows))
    if size == len(rows):
        return onednn_linear(x, weight)
    return onednn_linear(functional.pad(rows, (0, 0, 0, size - len(rows))), weight)[: len(rows)].view(*x.shape[:-1], -1)


def round_rows(rows: int) -> int:
    """The next of the few row counts that products are made with."""
    step = max(2 ** (rows.bit_length() - 1) // _SIZES_PER_OCTAVE, _SIZES_PER_OCTAVE)
    return rows if rows <= _SIZES_PER_OCTAVE else -(-rows // step) * step


def stack_rows(parts: Iterable[Tensor], rows: int = 0) -> Tensor:
    """The parts' rows one after another, then zeros up to a rounded count that is at least `rows`."""
    parts = list(parts)
    total = sum(len(part) for part in parts)
    missing = round_rows(max(total, rows)) - total
    if missing:
        parts.append(parts[0].new_zeros(missing, *parts[0].shape[1:]))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _suits_onednn(x: Tensor) -> bool:
    many = x.numel() > _FEW_ROWS * x.shape[-1]
    return many and HAS_ONEDNN and x.dtype == torch.float32 and x.device.type == "cpu" and not _autocasts(x)


def _autocasts(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def _weight_gradient(inputs: Tensor, gradients: Tensor) -> Tensor:  # (rows, in), (rows, out) -> (out, in)
    into, x = stack_rows([gradients]).t().contiguous(), stack_rows([inputs]).t()
    return onednn_linear(into, x) if _suits_onednn(into) else into @ x.t()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore
        x, weight = ctx.saved_tensors
        for_input = product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        rows, into = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        for_weight = _weight_gradient(rows, into) if ctx.needs_input_grad[1] else None
        return for_input, for_weight
