"""Plain-torch stand-ins for the kernels that SGLang's CPU path imports. Ours, for tests: says nothing of SGLang's own.

PyPI has no build of sgl-kernel for CPUs. Model code, scheduler, verification, counters and HTTP server are SGLang's;
only what stands in attention.py, slots.py and tree.py is not. Every other name raises when it is called.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]


class _Operators:
    """Takes the place of the namespace torch.ops.sgl_kernel."""

    decode_attention_cpu = staticmethod(decode_attention_cpu)
    extend_attention_cpu = staticmethod(extend_attention_cpu)


torch.ops.sgl_kernel = _Operators()  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"the stand-in for sgl_kernel has no {name}")

    return missing
