"""Rows of ids of different lengths as one flat NumPy array, so that rules over millions of rows run without a loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ragged:
    """A list column of integers: the ids of all rows one after another, and how many each row has."""

    values: Ids  # (ids,)
    lengths: Counts  # (rows,)

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array) -> Ragged:
        """The rows of a list column without nulls."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = array.flatten().to_numpy(zero_copy_only=False)
        lengths = np.diff(array.offsets.to_numpy()).astype(np.int64)
        return cls(values, lengths)

    @property
    def starts(self) -> Counts:
        """Position of each row's first id among all values."""
        return np.cumsum(self.lengths) - self.lengths

    def rows(self) -> list[Ids]:
        """The ids of every row, as views."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []

    def count(self, mask: Mask) -> Counts:
        """How many ids of each row are marked; the mask has one entry per id."""
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask, dtype=np.int64)])
        return sums[self.starts + self.lengths] - sums[self.starts]

    def owners(self) -> Counts:
        """The row that each id belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def positions(self) -> Counts:
        """The place of each id in its own row, from 0."""
        return np.arange(len(self.values)) - np.repeat(self.starts, self.lengths)

    def last(self) -> Ids:
        """The last id of each row, -1 where a row is empty."""
        ends = self.starts + self.lengths - 1
        return np.where(self.lengths > 0, self.values[ends] if len(self.values) else -1, -1).astype(np.int32)
