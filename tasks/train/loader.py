"""Streams the sequences of hidden-state shards to training: a few at a time, so memory does not grow with the corpus.

Which sequences a step gets is a pure function of the seed and the step's number, so a resumed run needs nothing else.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.corpus import HIDDEN_STATES
from schemas.errors import ArtifactInvalid, DraftError
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import verify_file
from tasks.states.layout import StoredStates, stored_states
from tasks.train.sequence import Sequence
from tasks.train.top_tokens import TopRows

_OPEN_FILES = 16
_EPOCHS_PER_BATCH = 2  # permutations at hand: a batch may take the end of one epoch and the beginning of the next
_AHEAD = 2  # batches that wait for the training step

PART = "hidden_states"
_BINARY = {field.name for field in HIDDEN_STATES.arrow if pa.types.is_large_binary(field.type)}


class SequenceSource(Protocol):
    """Where training gets its sequences: by number, from any thread, the same ones whenever it asks."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Sequence:
        """One sequence, in memory of its own."""
        ...


@runtime_checkable
class BatchSource(SequenceSource, Protocol):
    """One that is faster when it is asked for several at once."""

    def read_batch(self, indices: Many[int]) -> list[Sequence]:
        """Several sequences."""
        ...


class SequenceStore:
    """The sequences of one split, by number, read from their row group when asked for."""

    def __init__(self, states: list[Shards], split: str) -> None:
        """Verify the shards and note where each sequence of the split is.

        Raises:
            ArtifactInvalid: a shard is missing, altered, or not of hidden states.
            DraftError: there is no sequence of this split.
        """
        shards = [shard for artifact in states for shard in artifact.part(PART)]
        self._paths = [shard.locate() for shard in shards]
        self._files: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self._lock = threading.Lock()
        places: list[tuple[int, int, int]] = []
        for number, (shard, path) in enumerate(zip(shards, self._paths, strict=True)):
            verify_file(path, shard.bytes, shard.sha256, "sha256")
            file = self._file(number)
            named = file.read(columns=["split", "place"])
            found = zip(named["split"].to_pylist(), named["place"].to_pylist(), strict=True)
            ordered: list[tuple[int, int, int]] = []  # place, group, row: a shard's rows come as they were computed
            for group in range(file.num_row_groups):
                for row in range(file.metadata.row_group(group).num_rows):
                    own_split, place = next(found)
                    if own_split == split:
                        ordered.append((place, group, row))
            places += [(number, group, row) for _, group, row in sorted(ordered)]
        if not places:
            raise DraftError(f"the hidden states hold no sequence of the split {split!r}: nothing to do with them")
        self._places = np.asarray(places, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> Sequence:
        """One sequence, in memory of its own.

        Raises:
            ArtifactInvalid: the row does not hold what the contract says.
        """
        number, group, row = (int(part) for part in self._places[index])
        with self._lock:
            table = self._file(number).read_row_group(group)
        return _sequence(table, row, self._paths[number])

    def _file(self, number: int) -> pq.ParquetFile:
        if number in self._files:
            self._files.move_to_end(number)
            return self._files[number]
        path = self._paths[number]
        try:
            file = pq.ParquetFile(path)  # not mapped: mapped pages would count as memory of this process
        except (pa.ArrowInvalid, OSError) as exc:
            raise ArtifactInvalid(f"{path} is not readable Parquet: {exc}") from exc
        if not file.schema_arrow.equals(HIDDEN_STATES.arrow, check_metadata=False):
            raise ArtifactInvalid(f"{path} does not hold hidden states, its columns are {file.schema_arrow.names}")
        self._files[number] = file
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return file


class BatchPlan:
    """Which sequences each training step gets: every epoch is a new permutation of all, without gaps between epochs."""

    def __init__(self, sequences: int, batch: int, epochs: float, seed: int) -> None:
        self._sequences, self._batch, self._seed = sequences, batch, seed
        self.steps = max(math.ceil(epochs * sequences / batch), 1)
        self._permutations: OrderedDict[int, np.ndarray] = OrderedDict()

    def batch(self, step: int) -> list[int]:
        """Numbers of the sequences of a step."""
        first = step * self._batch
        return [self._at(position) for position in range(first, first + self._batch)]

    def _at(self, position: int) -> int:
        epoch, place = divmod(position, self._sequences)
        if epoch not in self._permutations:
            self._permutations[epoch] = np.random.default_rng([self._seed, epoch]).permutation(self._sequences)
            if len(self._permutations) > _EPOCHS_PER_BATCH:
                self._permutations.popitem(last=False)
        return int(self._permutations[epoch][place])


@contextmanager
def prefetched(
    store: SequenceSource,
    plan: BatchPlan,
    start: int,
    share: Callable[[Many[int]], Many[int]] = lambda numbers: numbers,
) -> Iterator[Iterator[list[Sequence]]]:
    """The batches of steps `start` and after, read ahead by one background thread that ends with the block.

    Args:
        store: where the sequences are.
        plan: which of them each step gets.
        start: the first step.
        share: picks from a batch's numbers those that this process computes.
    """
    reader = ThreadPoolExecutor(1, "load")

    def read(step: int) -> list[Sequence]:
        wanted = share(plan.batch(step))
        return store.read_batch(wanted) if isinstance(store, BatchSource) else [store.read(index) for index in wanted]

    def batches() -> Iterator[list[Sequence]]:
        waiting: list[Future[list[Sequence]]] = []
        for step in range(start, plan.steps + _AHEAD):
            if step < plan.steps:
                waiting.append(reader.submit(read, step))
            if step - start >= _AHEAD and waiting:
                yield waiting.pop(0).result()

    try:
        yield batches()
    finally:
        reader.shutdown(cancel_futures=True)


def _sequence(table: pa.Table, row: int, path: Path) -> Sequence:
    cells: dict[str, Any] = {name: table[name][row] for name in table.column_names}
    plain = {n: cell.as_buffer() if n in _BINARY else cell.as_py() for n, cell in cells.items()}
    try:
        sequence = sequence_of(stored_states(plain), plain["sequence_id"])
    except ArtifactInvalid as exc:
        raise ArtifactInvalid(f"{path}: {exc}") from exc
    if bad := sequence.not_finite():
        raise ArtifactInvalid(f"{path}: {bad} of sequence {sequence.name} are not finite: extract them again")
    return sequence


def sequence_of(states: StoredStates, name: str) -> Sequence:
    """What training sees of a stored row."""
    top = TopRows(states.top.ids.long(), states.top.log_probabilities) if states.top else None
    return Sequence(states.token_ids, states.aux, states.last, states.last_from, states.prompt_length, name, top)
