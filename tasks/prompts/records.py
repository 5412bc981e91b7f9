"""The rows of a file, one at a time: JSON lines, one JSON array, or Parquet, each also as gzip; known by their bytes.

No more is held than a row, or one batch of Parquet. The bytes of a row are kept as they are. A row that cannot be
decoded is a record with its fault; a file in which rows cannot be told apart raises.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.prompts.script import Unusable, is_unicode

_BOM = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_WHITE = " \t\r\n"
_PEEK = 4096
_CHUNK = 1 << 20
_LARGEST_ITEM = 1 << 28  # characters; an array's item that does not end by then is damaged
_BATCH_ROWS = 128  # rows of agents' runs are large
_DECODER = json.JSONDecoder()


class SourceDamaged(Exception):
    """A file in which rows cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a source: its place, counted from 1, its bytes, and its columns or why they cannot be had.

    A row of a columnar source never was a text of its own, and has no bytes.
    """

    place: str
    line: bytes
    row: Mapping[str, Any] | Unusable
    columnar: bool = False

    @property
    def raw(self) -> bytes:
        """The row's bytes; of a columnar source, JSON of the columns that were read."""
        if not self.columnar or isinstance(self.row, Unusable):
            return self.line
        return json.dumps(self.row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Records:
    """The records of a source, and the names of all its columns where the source declares them."""

    rows: Iterator[Record]
    columns: tuple[str, ...] = ()


def open_file(path: Path, wanted: Collection[str]) -> Records:
    """The records of a file; of a columnar one only the wanted columns.

    Raises:
        SourceDamaged: rows cannot be told apart; also while the records are read.
    """
    try:
        return _open(path, wanted)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as exc:
        raise SourceDamaged(f"is damaged ({exc}); fetch it again") from exc


def _open(path: Path, wanted: Collection[str]) -> Records:
    file: IO[bytes] = open(path, "rb")  # noqa: SIM115 - the generators below close it
    if file.read(2) == _GZIP_MAGIC:
        file.seek(0)
        file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        start = file.peek(_PEEK)[:_PEEK]
    else:
        file.seek(0)
        start = file.read(_PEEK)
        file.seek(0)
    if start.startswith(_PARQUET_MAGIC):
        parquet = pq.ParquetFile(_seekable(file), buffer_size=_CHUNK)
        names = tuple(parquet.schema_arrow.names)
        return Records(_guarded(_parquet_rows(parquet, [name for name in names if name in wanted])), names)
    if start.removeprefix(_BOM).lstrip().startswith(b"["):
        return Records(_guarded(_array_rows(file)))
    return Records(_guarded(_lines(file)))


def _guarded(rows: Iterator[Record]) -> Iterator[Record]:
    try:
        yield from rows
    except (OSError, EOFError, zlib.error, pa.ArrowException) as exc:
        raise SourceDamaged(f"is damaged ({exc}); fetch it again") from exc


def _seekable(file: IO[bytes]) -> IO[bytes]:
    """Parquet is read from its end, so a packed one is unpacked into a file without a name."""
    if not isinstance(getattr(file, "raw", None), gzip.GzipFile):
        return file
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as its reader
    shutil.copyfileobj(file, unpacked, _CHUNK)
    unpacked.seek(0)
    return unpacked


def _lines(file: IO[bytes]) -> Iterator[Record]:
    """A last line without a line feed counts if it is whole. A byte order mark at the start is no content."""
    with file:
        for number, line in enumerate(file, start=1):
            raw = (line.removeprefix(_BOM) if number == 1 else line).removesuffix(b"\n")
            if raw or line.endswith(b"\n"):
                yield Record(f"line {number}", raw, _decoded(raw, torn=not line.endswith(b"\n")))


def _decoded(line: bytes, torn: bool) -> Mapping[str, Any] | Unusable:
    if not line.strip():
        return Unusable("blank_line", "the line is blank")
    try:
        return _checked_row(json.loads(line.decode()))
    except (ValueError, RecursionError) as exc:
        if torn:
            return Unusable("torn_last_line", "the file ends in the middle of a row")
        if isinstance(exc, UnicodeDecodeError):
            return Unusable("invalid_utf8", f"byte {exc.start} of the line is not UTF-8")
        return Unusable("invalid_json", str(exc))


def _checked_row(value: Any) -> Mapping[str, Any] | Unusable:
    if isinstance(value, dict):
        return value
    return Unusable("not_an_object", f"the row is a JSON {type(value).__name__}, not an object")


def _array_rows(file: IO[bytes]) -> Iterator[Record]:
    with file:
        for number, (text, value) in enumerate(_ArrayItems(file), start=1):
            whole = is_unicode(text)
            row = _checked_row(value) if whole else Unusable("invalid_utf8", "the row has bytes that are not UTF-8")
            yield Record(f"row {number}", text.encode("utf-8", "surrogateescape"), row)


class _ArrayItems:
    """The items of a JSON array with their texts, read piece by piece."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
        self._text, self._at, self._ended = "", 0, False

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        self._take("[", 0)
        found = 0
        while self._next() != "]" or found:
            value, end = self._item(found)
            yield self._text[self._at : end], value
            self._at, found = end, found + 1
            if self._next() == "]":
                break
            self._take(",", found)
        self._take("]", found)
        if self._next():
            raise SourceDamaged(f"goes on after its JSON array of {found} items; give one array, or an object a line")

    def _item(self, found: int) -> tuple[Any, int]:
        """The next item, and where it ends."""
        self._next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                value, end = None, -1
            except (ValueError, RecursionError) as exc:
                raise SourceDamaged(f"has a JSON array whose item {found + 1} cannot be read: {exc}") from exc
            if end >= 0 and (end < len(self._text) or self._ended):  # a number may go on in the next piece
                return value, end
            if self._ended or len(self._text) - self._at > _LARGEST_ITEM:
                raise SourceDamaged(f"has a JSON array that is cut short or damaged after item {found}; fetch it again")
            self._read_on()

    def _next(self) -> str:
        """The next character that is no white space, which stays; nothing at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _WHITE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._read_on()

    def _take(self, character: str, found: int) -> None:
        if self._next() != character:
            raise SourceDamaged(f"has a JSON array that is cut short or damaged after item {found}; fetch it again")
        self._at += 1

    def _read_on(self) -> None:
        """Reads as much again as is held, so that a large item is not tried too often."""
        piece = self._file.read(max(_CHUNK, len(self._text) - self._at))
        self._ended = not piece
        self._text = self._text[self._at :] + self._decode.decode(piece, final=self._ended)
        self._at = 0


def _parquet_rows(parquet: pq.ParquetFile, columns: list[str]) -> Iterator[Record]:
    number = 0
    for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns or None):
        for row in _rows_of(batch):
            number += 1
            yield Record(f"row {number}", b"", row, columnar=True)


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any] | Unusable]:
    try:
        return [*batch.to_pylist()]
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [Unusable("invalid_utf8", "a text of the row is not UTF-8")]
        return [row for place in range(batch.num_rows) for row in _rows_of(batch.slice(place, 1))]
