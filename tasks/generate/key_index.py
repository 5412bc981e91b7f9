"""Which content key is where: about 24 bytes a key, so that a million answers can be looked up in memory.

Keys are spread over small sorted arrays; new ones wait in a dictionary beside each and are merged in when there are a
few hundred, so that no single call takes long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SHARDS = 256
_FRESH = 256  # entries that wait beside a sorted array
_BYTES = 16


class KeyIndex:
    """A map from hex keys, of which the first 128 bits count, to places. Not thread-safe."""

    def __init__(self) -> None:
        self._shards = [_Shard() for _ in range(_SHARDS)]

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def get(self, key: str) -> int | None:
        """The place of a key, or None."""
        short = bytes.fromhex(key[: 2 * _BYTES])
        return self._shards[short[0]].get(short.rstrip(b"\0"))

    def put(self, key: str, place: int) -> None:
        """Note the place of a key; one that is known moves there."""
        short = bytes.fromhex(key[: 2 * _BYTES])
        self._shards[short[0]].put(short.rstrip(b"\0"), place)

    @property
    def nbytes(self) -> int:
        """Bytes of the sorted arrays."""
        return sum(shard.keys.nbytes + shard.places.nbytes for shard in self._shards)


class _Shard:
    def __init__(self) -> None:
        # NumPy drops zeros at the end of such strings; keys come without them, and all are of one length
        self.keys: NDArray[np.bytes_] = np.empty(0, f"S{_BYTES}")
        self.places: NDArray[np.int64] = np.empty(0, np.int64)
        self.fresh: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.keys) + len(self.fresh)

    def get(self, key: bytes) -> int | None:
        if (place := self.fresh.get(key)) is not None:
            return place
        row = self._row(key)
        return None if row is None else int(self.places[row])

    def put(self, key: bytes, place: int) -> None:
        if (row := self._row(key)) is not None:
            self.places[row] = place
            return
        self.fresh[key] = place
        if len(self.fresh) >= _FRESH:
            self._merge()

    def _row(self, key: bytes) -> int | None:
        row = int(np.searchsorted(self.keys, np.bytes_(key)))
        return row if row < len(self.keys) and self.keys[row] == key else None

    def _merge(self) -> None:
        keys = np.concatenate([self.keys, np.array(list(self.fresh), self.keys.dtype)])
        places = np.concatenate([self.places, np.array(list(self.fresh.values()), np.int64)])
        order = np.argsort(keys, kind="stable")
        self.keys, self.places = keys[order], places[order]
        self.fresh = {}
