"""Rows of hidden states for a shard of the corpus, written as they come: no more than a batch is held in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from schemas.corpus import HIDDEN_STATES
from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from tasks.states.layout import Kept, asked, bytes_of, refuse_too_long, state_row
from tasks.states.source import StateSource, refuse_unsound


def forecast_bytes(corpus: pa.Table, hidden_size: int, spec: ExtractionSpec) -> int:
    """Bytes that the states of these CORPUS rows take.

    Raises:
        StoreError: a sequence is too long for one cell of a file.
    """
    lengths = [len(ids) for ids in corpus["token_ids"]]
    prompts = corpus["prompt_length"].to_pylist()
    kept = [length - Kept.of(prompt, spec).first for length, prompt in zip(lengths, prompts, strict=True)]
    refuse_too_long(list(zip(corpus["sequence_id"].to_pylist(), kept, strict=True)), hidden_size, spec)
    return sum(bytes_of(length, prompt, hidden_size, spec) for length, prompt in zip(lengths, prompts, strict=True))


def extracted(source: StateSource, corpus: pa.Table, hidden_size: int, spec: ExtractionSpec) -> Iterator[pa.Table]:
    """HIDDEN_STATES for the rows of a CORPUS table, a batch at a time; `place` is the row that one belongs to.

    Raises:
        ProbeFailed: names a sequence whose states are not finite, not one per id, or missing.
    """
    rows = corpus.to_pylist()
    wanted = [asked(row) for row in rows]
    missing = set(range(len(rows)))
    for batch in source.states(wanted):
        for found in batch:
            refuse_unsound(wanted[found.place], found)
            missing.remove(found.place)
        yield HIDDEN_STATES.table(
            (state_row(rows[found.place], found, hidden_size, spec) for found in batch), "hidden states"
        )
    if missing:
        raise ProbeFailed(
            f"no states came back for {len(missing)} sequences, first {rows[min(missing)]['sequence_id']}"
        )
