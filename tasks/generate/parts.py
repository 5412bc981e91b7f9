"""Closed segments of a log become Parquet, one part per segment, whole or absent, and are read from there afterwards.

A segment goes only when its part is on disk and read back, so that a kill between any two steps loses and doubles
nothing. A segment with damage is set aside instead, for whoever wants to look at it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.contract import Contract
from schemas.errors import ArtifactInvalid
from tasks.artifacts.files import METADATA_KEY, atomic_file, sync_folder
from tasks.generate.durable import Damage, Record, scan, segment_path, segments_in

_ROWS_PER_GROUP = 1024
_BYTES_PER_GROUP = 8 * 2**20
_SUFFIX = ".parquet"
_DAMAGED = ".damaged"


def part_path(folder: Path, segment: int) -> Path:
    """Where the part of a segment is."""
    return folder / f"{segment:08d}{_SUFFIX}"


def parts_in(folder: Path) -> list[int]:
    """Segments that have a part, oldest first."""
    return sorted(int(path.stem) for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdigit())


def numbers_in(folder: Path) -> list[int]:
    """Numbers that are taken: of parts, and of segments set aside as damaged."""
    return parts_in(folder) + [int(path.stem) for path in folder.glob(f"*{_DAMAGED}")]


def finish_compaction(folder: Path) -> None:
    """Complete what a kill interrupted; only for the one writer of the folder."""
    for leftover in folder.glob(f".*{_SUFFIX}.*.tmp"):
        leftover.unlink()
    for segment in sorted({*segments_in(folder)} & {*parts_in(folder)}):
        retire_segment(folder, segment)


def segment_rows(folder: Path, segment: int) -> Iterator[Record]:
    """The whole records of a segment."""
    for item in scan(segment_path(folder, segment).read_bytes(), segment):
        if isinstance(item, Record):
            yield item


def write_part(folder: Path, segment: int, contract: Contract, rows: Iterable[dict[str, Any]]) -> int:
    """Write a segment's rows as its part; returns how many. No rows, no part.

    Raises:
        ArtifactInvalid: what was written cannot be read back.
        ContractViolation: a row breaks the contract.
    """
    path, count = part_path(folder, segment), 0
    schema = contract.arrow.with_metadata({METADATA_KEY: contract.name.encode()})
    groups = _groups(rows)
    if (first := next(groups, None)) is None:
        return 0
    with (
        atomic_file(path) as handle,
        pq.ParquetWriter(handle, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for group in (first, *groups):
            writer.write_table(contract.table(group, str(path)).cast(schema), row_group_size=len(group))
            count += len(group)
    if (found := Part(path).rows) != count:
        raise ArtifactInvalid(f"{path} has {found} rows, {count} were written: its segment is kept")
    return count


def retire_segment(folder: Path, segment: int) -> None:
    """Remove a segment whose part is on disk; one with damage is renamed."""
    path = segment_path(folder, segment)
    if any(isinstance(item, Damage) for item in scan(path.read_bytes(), segment)):
        os.replace(path, path.with_suffix(_DAMAGED))
    else:
        path.unlink()
    sync_folder(folder)


class Part:
    """Reads one part: a column, or a row."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            ArtifactInvalid: it is not readable.
        """
        self._path = path
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as exc:
            raise _unreadable(path, exc) from exc
        lengths = [self._file.metadata.row_group(n).num_rows for n in range(self._file.metadata.num_row_groups)]
        self._starts = np.cumsum([0, *lengths])
        self._group: tuple[int, pa.Table] | None = None

    @property
    def rows(self) -> int:
        return self._file.metadata.num_rows

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        return self.table([name])[name].to_pylist()

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """The rows as a table."""
        try:
            return self._file.read(columns=columns).replace_schema_metadata(None)
        except (pa.ArrowException, OSError) as exc:
            raise _unreadable(self._path, exc) from exc

    def row(self, number: int) -> dict[str, Any]:
        """One row; its neighbours are kept at hand."""
        group = int(np.searchsorted(self._starts, number, side="right")) - 1
        if self._group is None or self._group[0] != group:
            try:
                self._group = (group, self._file.read_row_group(group))
            except (pa.ArrowException, OSError) as exc:
                raise _unreadable(self._path, exc) from exc
        return self._group[1].slice(number - int(self._starts[group]), 1).to_pylist()[0]

    def forget(self) -> None:
        """Drop the rows kept at hand."""
        self._group = None


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row.get("body", b""))
        if len(group) >= _ROWS_PER_GROUP or size >= _BYTES_PER_GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _unreadable(path: Path, exc: Exception) -> ArtifactInvalid:
    return ArtifactInvalid(f"{path} is not readable: {exc}. Restore it, or move it away to do its requests again")
