"""The target's keys and values for rows that advance at their own pace.

A token's slot is its position, so a rejected token's entry is hidden by the mask (slot <= position) until the next
token of that position takes its place: nothing is cropped, padded or moved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin

from schemas.errors import EngineError


class SlotCache(Cache):
    """Preallocated keys and values of all layers; call `place` before each forward pass of the target.

    Args:
        config: the target's configuration.
        capacity: slots per row.

    Raises:
        EngineError: the target has layers whose attention is not full (sliding window, recurrent).
    """

    def __init__(self, config: PreTrainedConfig, capacity: int) -> None:
        text = config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise EngineError(
                f"the transformers engine decodes speculatively with full attention only; {text.model_type} has "
                f"{', '.join(sorted(kinds))}: benchmark this target with another engine"
            )
        self._slot_layers = [_SlotLayer(capacity) for _ in range(text.num_hidden_layers)]
        super().__init__(layers=list(self._slot_layers))

    def place(self, positions: Tensor, visible: int) -> Tensor:
        """Say where the next forward pass writes, int64 (rows, tokens), and how many slots it reads.

        Returns:
            The additive attention mask, (rows, 1, tokens, visible).
        """
        for layer in self._slot_layers:
            layer.slots, layer.visible = positions, visible
        return slot_mask(positions, visible)

    def place_tree(self, slots: Tensor, first: Tensor, ancestry: Tensor, visible: int) -> Tensor:
        """As `place`, for the nodes of a tree, whose positions are not their slots.

        Args:
            slots: int64 (rows, nodes), one after another from `first` on.
            first: int64 (rows,), slot of node 0; slots below it are seen by all nodes.
            ancestry: bool (rows, nodes, nodes), whether the first sees the second.
            visible: slots that are read.
        """
        for layer in self._slot_layers:
            layer.slots, layer.visible = slots, visible
        each = torch.arange(visible, device=slots.device)
        seen = (each < first[:, None])[:, None].repeat(1, slots.shape[1], 1)  # (rows, nodes, visible)
        inside = slots.clamp(max=visible - 1)[:, None].expand(-1, slots.shape[1], -1)
        seen.scatter_(2, inside, ancestry)
        hidden = ~seen[:, None]
        return torch.zeros(hidden.shape, device=slots.device).masked_fill_(hidden, torch.finfo(torch.float32).min)

    def move(self, sources: Tensor, slots: Tensor) -> None:
        """Copy entries to other slots, int64 (rows, n) both."""
        for layer in self._slot_layers:
            layer.stored.move(sources, slots)

    def expand(self, times: int) -> None:
        """Repeat each row `times` times, next to each other."""
        for layer in self._slot_layers:
            layer.stored.expand(times)

    def select(self, rows: Tensor) -> None:
        """Keep these rows only."""
        for layer in self._slot_layers:
            layer.stored.select(rows)


def slot_mask(positions: Tensor, visible: int) -> Tensor:
    """Additive mask (rows, 1, tokens, visible): a token sees the slots up to its own position."""
    hidden = torch.arange(visible, device=positions.device) > positions[:, None, :, None]
    return torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, torch.finfo(torch.float32).min)


class KeyValues:
    """One layer's keys and values, (rows, heads, capacity, head_dim), allocated at the first write."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._buffers: tuple[Tensor, Tensor] | None = None

    def write(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store keys and values (rows, heads, tokens, head_dim) at int64 slots (rows, tokens)."""
        if self._buffers is None:
            shape = (*keys.shape[:2], self.capacity)
            # zeros, since what a mask hides is still multiplied (by 0) and must not be NaN
            self._buffers = keys.new_zeros(*shape, keys.shape[-1]), values.new_zeros(*shape, values.shape[-1])
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[rows, :, slots] = new.transpose(1, 2)

    def move(self, sources: Tensor, slots: Tensor) -> None:
        """Copy entries to other slots, int64 (rows, n) both."""
        rows = torch.arange(len(slots), device=slots.device)[:, None]
        for buffer in self._filled():
            buffer[rows, :, slots] = buffer[rows, :, sources]

    def read(self, visible: int) -> tuple[Tensor, Tensor]:
        """The first `visible` slots of keys and values."""
        keys, values = self._filled()
        return keys[:, :, :visible], values[:, :, :visible]

    def expand(self, times: int) -> None:
        """Repeat each row `times` times, next to each other."""
        if times > 1:
            keys, values = self._filled()
            self._buffers = keys.repeat_interleave(times, dim=0), values.repeat_interleave(times, dim=0)

    def select(self, rows: Tensor) -> None:
        """Keep these rows only."""
        keys, values = self._filled()
        self._buffers = keys[rows], values[rows]

    def _filled(self) -> tuple[Tensor, Tensor]:
        if self._buffers is None:
            raise EngineError("keys and values were asked for before any was written")
        return self._buffers


class _SlotLayer(CacheLayerMixin):
    """A layer's keys and values in the shape that transformers calls."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.stored = KeyValues(capacity)
        self.slots: Tensor
        self.visible = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.stored.write(key_states, value_states, self.slots)
        return self.stored.read(self.visible)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.visible, 0

    def get_seq_length(self) -> int:
        return self.visible

    def get_max_length(self) -> int:
        return self.stored.capacity
