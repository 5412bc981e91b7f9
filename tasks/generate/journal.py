"""A write-ahead journal: finished batches survive a kill, one checksummed line each.

A line counts once it is on disk whole. Opening cuts away everything from the first damaged line on; those batches are
made again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32


class Journal:
    """An append-only file of (key, value) lines; values are JSON. Not for several writers at once.

    `key` must name the content that the value was made from, so that an entry of another batch is never taken.
    """

    def __init__(self, path: Path) -> None:
        """Open, or create, and cut back to the last whole line."""
        self._file = open(path, "a+b")  # noqa: SIM115 (closed by close)
        self._file.seek(0)
        self._entries, end = _read(self._file.read())
        self._file.truncate(end)
        self._sync()

    def get(self, key: str) -> Any | None:
        """The value of a finished batch, or None."""
        return self._entries.get(key)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, key: str, value: Any) -> None:
        """Add a finished batch; it is on disk when this returns."""
        body = json.dumps([key, value], separators=(",", ":"), ensure_ascii=False).encode()
        self._file.write(b"%08x %s\n" % (crc32(body), body))
        self._sync()
        self._entries[key] = value

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


def _read(content: bytes) -> tuple[dict[str, Any], int]:
    """The entries before the first line that is not whole, and where that line begins."""
    entries: dict[str, Any] = {}
    position = 0
    while (end := content.find(b"\n", position)) >= 0:
        checksum, _, body = content[position:end].partition(b" ")
        if not body or checksum != b"%08x" % crc32(body):
            break
        key, value = json.loads(body)
        entries[key] = value
        position = end + 1
    return entries, position
