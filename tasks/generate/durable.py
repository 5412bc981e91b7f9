"""An append-only log that survives kills and power cuts: numbered segments of checksummed records, one writer.

Many appends share one fsync (group commit), and whoever appended goes on when its record is on disk. A record names
its own place in its checksum, so that reading can find the next good record after a damaged one, and never takes bytes
inside a payload for a record. What a payload means is the caller's.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from schemas.errors import StoreError
from tasks.artifacts.files import sync_folder

SEGMENT_BYTES = 128 * 2**20
SUFFIX = ".log"
_MAGIC = b"\x93\xe9yR"
_HEADER = struct.Struct("<4sII")  # magic, length of the payload, checksum
_PLACE = struct.Struct("<QQI")  # segment, offset, length
_LARGEST = 2**30
_BATCH_BYTES = 4 * 2**20  # written and synced together at most
_BATCH_RECORDS = 256  # so that an event loop is not busy for long with those who waited
_POLL_SECONDS = 0.05
_OFFSET_BITS = 40


@dataclass(frozen=True)
class Record:
    """A whole record; `place` finds it again."""

    segment: int
    offset: int
    payload: bytes

    @property
    def place(self) -> int:
        return place_of(self.segment, self.offset)


@dataclass(frozen=True)
class Damage:
    """Bytes of a segment that are no record; at the end of the last segment, what a kill tore off."""

    segment: int
    start: int
    end: int


def place_of(segment: int, offset: int) -> int:
    """One number for a segment and an offset (or a row) in it."""
    return segment << _OFFSET_BITS | offset


def parts_of(place: int) -> tuple[int, int]:
    """Segment and offset of a place."""
    return place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)


def scan(content: bytes, segment: int) -> Iterator[Record | Damage]:
    """Every whole record of a segment, and the stretches between them that are none."""
    position, damaged_from = 0, None
    while position < len(content):
        payload = _payload_at(content, segment, position)
        if payload is None:
            damaged_from = position if damaged_from is None else damaged_from
            following = content.find(_MAGIC, position + 1)
            position = len(content) if following < 0 else following
            continue
        if damaged_from is not None:
            yield Damage(segment, damaged_from, position)
            damaged_from = None
        yield Record(segment, position, payload)
        position += _HEADER.size + len(payload)
    if damaged_from is not None:
        yield Damage(segment, damaged_from, position)


def segment_path(folder: Path, segment: int) -> Path:
    """Where a segment is."""
    return folder / f"{segment:08d}{SUFFIX}"


def segments_in(folder: Path) -> list[int]:
    """The segments of a folder, oldest first."""
    return sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit())


def lock_folder(folder: Path, wait_seconds: float = 0) -> int:
    """A descriptor that makes this process the one writer of a folder until it is closed.

    Raises:
        StoreError: another process writes there and has not ended in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "writer.lock", os.O_CREAT | os.O_RDWR, 0o644)
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise StoreError(
                f"{folder} is being written by process {holder}: wait for it to end, or stop it, and start again"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor


@dataclass
class _Entry:
    payload: bytes
    tag: Any = None
    roll: bool = False
    place: int = -1  # not written yet
    future: Future[int] = field(default_factory=Future)


class DurableLog:
    """The one writer of a folder's segments; the caller holds the folder's lock. Safe from threads and event loops.

    Args:
        visit: told every whole record that is there, oldest first, before anything is appended.
        at_once: write in the caller's thread, so that a record outlives this process as soon as `submit` returns
            (power cuts only after its future is done).
        on_durable: told tags and places of the records of each batch, before their futures are done.
        least: number that the first new segment has at least.
    """

    def __init__(
        self,
        folder: Path,
        visit: Callable[[Record], None],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        at_once: bool = False,
        on_durable: Callable[[list[tuple[Any, int]]], None] = lambda written: None,
        least: int = 1,
    ) -> None:
        self.folder, self.torn_bytes = folder, 0
        self.damage: list[Damage] = []
        self._segment_bytes, self._at_once, self._on_durable = segment_bytes, at_once, on_durable
        self._wake = threading.Condition()
        self._queue: list[_Entry] = []
        self._closing = False
        self._broken: StoreError | None = None
        self._recover(visit, least)
        self._thread = threading.Thread(target=self._run, name=f"log-{folder.name[:8]}", daemon=True)
        self._thread.start()

    @property
    def closed_segments(self) -> list[int]:
        """Segments that will not grow."""
        return [segment for segment in segments_in(self.folder) if segment < self.segment]

    def submit(self, payload: bytes, tag: Any = None) -> Future[int]:
        """Append a record; the future gives its place when it is on disk.

        Raises:
            StoreError: an earlier write failed, or the log is closed.
        """
        return self._enqueue(_Entry(payload, tag))

    def roll(self) -> None:
        """Close the segment that grows, unless it is empty, and begin the next one."""
        self._enqueue(_Entry(b"", roll=True)).result()

    def close(self) -> None:
        """Write what was appended, then end."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify_all()
        self._thread.join()
        os.close(self._descriptor)

    def _recover(self, visit: Callable[[Record], None], least: int) -> None:
        found = segments_in(self.folder)
        for segment in found:
            path = segment_path(self.folder, segment)
            content = path.read_bytes()
            for item in scan(content, segment):
                if isinstance(item, Record):
                    visit(item)
                elif item.end == len(content) and segment == found[-1]:
                    self.torn_bytes = item.end - item.start
                    _cut(path, item.start)
                else:
                    self.damage.append(item)
        self.segment = max([*found[-1:], least])
        if not found or self.segment > found[-1]:
            self._descriptor, self._size = self._create(self.segment), 0
        else:
            self._descriptor = os.open(segment_path(self.folder, self.segment), os.O_WRONLY | os.O_APPEND)
            self._size = os.fstat(self._descriptor).st_size

    def _create(self, segment: int) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        descriptor = os.open(segment_path(self.folder, segment), flags, 0o644)
        sync_folder(self.folder)
        return descriptor

    def _enqueue(self, entry: _Entry) -> Future[int]:
        entry.future.set_running_or_notify_cancel()  # nobody who stops waiting takes the record back
        if len(entry.payload) > _LARGEST:
            raise StoreError(f"a record of {len(entry.payload):,} bytes is too long for {self.folder}")
        with self._wake:
            if self._broken:
                raise self._broken
            if self._closing:
                raise StoreError(f"the log {self.folder} is closed")
            if self._at_once and not entry.roll:
                try:
                    self._write([entry])
                except OSError as exc:
                    raise self._break(exc) from exc
            self._queue.append(entry)
            self._wake.notify()
        return entry.future

    def _run(self) -> None:
        while batch := self._take():
            error: StoreError | None = None
            try:
                self._commit(batch)
            except OSError as exc:
                with self._wake:
                    error = self._break(exc)
                    batch, self._queue = batch + self._queue, []
            _resolve(batch, error)

    def _take(self) -> list[_Entry]:
        with self._wake:
            while not self._queue and not self._closing:
                self._wake.wait()
            size = count = 0
            while count < min(len(self._queue), _BATCH_RECORDS) and size < _BATCH_BYTES:
                size += len(self._queue[count].payload)
                count += 1
                if self._queue[count - 1].roll:
                    break
            batch, self._queue = self._queue[:count], self._queue[count:]
            return batch

    def _commit(self, batch: list[_Entry]) -> None:
        records = [entry for entry in batch if not entry.roll]
        if not self._at_once and records:
            self._write(records)
        os.fsync(self._descriptor)
        self._on_durable([(entry.tag, entry.place) for entry in records])
        if self._size >= self._segment_bytes or (batch[-1].roll and self._size):
            self._next_segment()

    def _write(self, entries: list[_Entry]) -> None:
        """Add the records to the segment's file, not yet synced."""
        frames, start = [], self._size
        for entry in entries:
            entry.place = place_of(self.segment, self._size)
            frames.append(_frame(entry.payload, self.segment, self._size))
            self._size += len(frames[-1])
        left = memoryview(b"".join(frames))
        assert len(left) == self._size - start
        while left:
            left = left[os.write(self._descriptor, left) :]

    def _next_segment(self) -> None:
        descriptor = self._create(self.segment + 1)
        with self._wake:  # not for long: event loops wait for it when they append
            full, self._descriptor = self._descriptor, descriptor
            self._size, self.segment = 0, self.segment + 1
        os.fsync(full)  # at_once: records were added since its last one, whose futures are not done yet
        os.close(full)

    def _break(self, exc: OSError) -> StoreError:
        """After a failed write or sync nothing is known of the file until it is opened anew."""
        if self._broken is None:
            self._broken = StoreError(
                f"{self.folder} cannot be written: {exc.strerror}. What was acknowledged is safe; free space or check "
                "the disk, and start again"
            )
        return self._broken


def _frame(payload: bytes, segment: int, offset: int) -> bytes:
    return _HEADER.pack(_MAGIC, len(payload), _checksum(payload, segment, offset)) + payload


def _checksum(payload: bytes, segment: int, offset: int) -> int:
    return crc32(payload, crc32(_PLACE.pack(segment, offset, len(payload))))


def _payload_at(content: bytes, segment: int, offset: int) -> bytes | None:
    start = offset + _HEADER.size
    if start > len(content):
        return None
    magic, length, checksum = _HEADER.unpack_from(content, offset)
    if magic != _MAGIC or start + length > len(content):
        return None
    payload = content[start : start + length]
    return payload if checksum == _checksum(payload, segment, offset) else None


def read_record(descriptor: int, segment: int, offset: int) -> bytes | None:
    """The payload of one record of an open segment; None if it is damaged."""
    header = os.pread(descriptor, _HEADER.size, offset)
    if len(header) < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or length > _LARGEST:
        return None
    payload = os.pread(descriptor, length, offset + _HEADER.size)
    return payload if checksum == _checksum(payload, segment, offset) else None


def _cut(path: Path, length: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _resolve(entries: list[_Entry], error: StoreError | None) -> None:
    for entry in entries:
        if error:
            entry.future.set_exception(error)
        else:
            entry.future.set_result(entry.place)
