"""Rows set aside on disk while a run's prompts are gathered, so that millions of them need little memory."""

from __future__ import annotations

import struct
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

_IN_MEMORY = 1 << 25  # bytes up to which there is no file


class Spool(Sequence[list[bytes]]):
    """A growing list of rows of byte strings. The file has no name, and is gone with the process."""

    def __init__(self, folder: Path | None = None) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(folder) if folder else None)  # noqa: SIM115 - lives as long as this
        self._ends = array("Q", [0])
        self._appending = True

    def append(self, fields: Sequence[bytes]) -> int:
        """Add a row; returns its place."""
        if not self._appending:
            self._file.seek(self._ends[-1])
            self._appending = True
        head = struct.pack(f"<{1 + len(fields)}Q", len(fields), *map(len, fields))
        row = head + b"".join(fields)
        self._file.write(row)
        self._ends.append(self._ends[-1] + len(row))
        return len(self) - 1

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> list[bytes]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= place < len(self):
            raise IndexError(place)
        start, end = self._ends[place], self._ends[place + 1]
        self._file.seek(start)
        self._appending = False
        row = self._file.read(end - start)
        (count,) = struct.unpack_from("<Q", row)
        at = 8 * (1 + count)
        fields = []
        for length in struct.unpack_from(f"<{count}Q", row, 8):
            fields.append(row[at : at + length])
            at += length
        return fields

    def __iter__(self) -> Iterator[list[bytes]]:
        return (self[place] for place in range(len(self)))
