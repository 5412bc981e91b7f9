"""A key-value cache that grows in blocks and is written in place; transformers' own copies all of it at every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

BLOCK = 64  # positions


class BlockLayer(DynamicLayer):
    """One layer's keys and values: tensors (B, kv_heads, capacity, head_dim), filled up to `length` positions."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        """Keys and values with their spare positions."""
        if self._held is None:
            raise ValueError("the cache is empty")
        return self._held

    @property
    def filled(self) -> tuple[Tensor, Tensor]:
        """Views of the filled keys and values, (B, kv_heads, length, head_dim)."""
        keys, values = self.held
        return keys[..., : self.length, :], values[..., : self.length, :]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, kv_heads, T, head_dim) keys and values; returns all filled ones."""
        start, end = self.length, self.length + key_states.shape[-2]
        if self._held is None:
            self.lazy_initialization(key_states, value_states)
            self._held = _wider(key_states[..., :0, :], end + BLOCK), _wider(value_states[..., :0, :], end + BLOCK)
        elif end > self._held[0].shape[-2]:
            keys, values = self.filled
            self._held = _wider(keys, end + BLOCK), _wider(values, end + BLOCK)
        keys, values = self._held
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        return self._show(end)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last positions of all rows; the count is given as a negative number, as in transformers."""
        self._show(self.length - abs(tokens_to_remove))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        keys, values = self.held
        self._held = keys[indices], values[indices]
        self._show(self.length)

    def reset(self) -> None:
        """Forget everything and give the memory back."""
        self._held = self.keys = self.values = None
        self.is_initialized, self.length = False, 0

    def _show(self, length: int) -> tuple[Tensor, Tensor]:
        self.length = length
        self.keys, self.values = self.filled
        return self.filled


def block_cache(num_layers: int) -> Cache:
    """An empty cache for a decoder whose layers all attend to everything before them."""
    return Cache(layers=[BlockLayer() for _ in range(num_layers)])


def block_layers(cache: Cache) -> list[BlockLayer]:
    """The layers of a cache made here."""
    return cast(list[BlockLayer], cache.layers)


def repeated(cache: Cache, rows: int) -> Cache:
    """A cache of `rows` copies of a cache of one row."""
    copies = block_cache(len(cache.layers))
    for layer, copy in zip(block_layers(cache), block_layers(copies), strict=True):
        keys, values = layer.filled
        copy.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1))
    return copies


def joined(parts: Sequence[Cache], shared: int) -> Cache:
    """One cache of the rows of several, and empties those.

    All parts begin with the same `shared` positions. The rest of each is moved so that all end together; the places
    in between hold zeros and must be masked.
    """
    whole = block_cache(len(parts[0].layers))
    for index, layer in enumerate(block_layers(whole)):
        layers = [block_layers(part)[index] for part in parts]
        keys, values = zip(*(part.filled for part in layers), strict=True)
        layer.update(_aligned(keys, shared), _aligned(values, shared))
        for part in layers:
            part.reset()
    return whole


def _aligned(parts: Sequence[Tensor], shared: int) -> Tensor:
    _, heads, _, dim = parts[0].shape
    length = max(part.shape[-2] for part in parts)
    whole = parts[0].new_zeros(sum(len(part) for part in parts), heads, length, dim)
    first = 0
    for part in parts:
        rows = whole[first : first + len(part)]
        rows[..., :shared, :] = part[..., :shared, :]
        rows[..., length - (part.shape[-2] - shared) :, :] = part[..., shared:, :]
        first += len(part)
    return whole


def _wider(tensor: Tensor, capacity: int) -> Tensor:
    batch, heads, length, dim = tensor.shape
    wider = tensor.new_empty(batch, heads, capacity, dim)
    wider[..., :length, :] = tensor
    return wider
