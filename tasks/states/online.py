"""Sequences whose states are computed when they are asked for: nothing is stored, every epoch computes anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from schemas.extraction import ExtractionSpec
from tasks.states.layout import StoredStates, asked, state_row, stored_states
from tasks.states.source import StateSource, refuse_unsound


class OnlineStates:
    """The sequences of one split of the corpus, by number, in its order; may be used from several threads."""

    def __init__(
        self, source: StateSource, corpus: Sequence[pa.Table], split: str, hidden_size: int, spec: ExtractionSpec
    ) -> None:
        self._source, self._hidden, self._spec = source, hidden_size, spec
        self._rows: list[dict[str, Any]] = [
            row for table in corpus for row in table.to_pylist() if row["split"] == split
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        """The sequence's id."""
        return self._rows[index]["sequence_id"]

    def read(self, indices: Sequence[int]) -> list[StoredStates]:
        """The states of these sequences, computed together.

        They are what would have been stored: as bfloat16 or float8, with as much of the prompt as the recipe keeps.

        Raises:
            ProbeFailed: names a sequence whose states are not finite, or not one per id.
            EngineError: a server fails.
        """
        wanted = [asked(self._rows[index]) for index in indices]
        found: dict[int, StoredStates] = {}
        for batch in self._source.states(wanted):
            for captured in batch:
                refuse_unsound(wanted[captured.place], captured)
                row = self._rows[indices[captured.place]]
                found[captured.place] = stored_states(state_row(row, captured, self._hidden, self._spec))
        return [found[place] for place in range(len(wanted))]
