"""The linear layer of oneDNN, where this build of torch has it.

oneDNN uses the widest vector instructions of any CPU, MKL only on some makers' CPUs: float32 products are then about
twice as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: float32 (..., in), (out, in) -> (..., out); the weight may be packed."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # noqa: SLF001 (what torch.compile emits)


def pack_weight(weight: Tensor, rows: int) -> Tensor:
    """A copy of a weight in the layout that suits inputs of so many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)  # noqa: SLF001
