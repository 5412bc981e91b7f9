"""Answers that were paid for: each is on disk, raw body and all, before it counts, and is found by what was asked.

<store>/paid/<scope>/NNNNNNNN.log       write-ahead log of completed answers
<store>/paid/<scope>/NNNNNNNN.parquet   the same answers of a closed segment, contract PAID_ANSWERS

The store is no part of any task's result: a recipe that is changed where it does not change what is asked, or a task
with a new key, finds what an earlier one paid for. What is asked next, and what it may cost, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from schemas.errors import ArtifactInvalid, StoreError
from schemas.ledger import PAID_ANSWERS
from tasks.artifacts.files import write_bytes
from tasks.generate.asked import Scope
from tasks.generate.durable import (
    SEGMENT_BYTES,
    Damage,
    DurableLog,
    Record,
    lock_folder,
    parts_of,
    place_of,
    read_record,
    scan,
    segment_path,
    segments_in,
)
from tasks.generate.key_index import KeyIndex
from tasks.generate.parts import (
    Part,
    finish_compaction,
    numbers_in,
    part_path,
    parts_in,
    retire_segment,
    segment_rows,
    write_part,
)

_PREFIX = struct.Struct("<32sI")  # key, length of the facts
_READ_ATTEMPTS = 5

_log = logging.getLogger("eyas.generate")


@dataclass(frozen=True)
class AnswerMeta:
    """What is known of an answer without reading its body; null is what nobody said."""

    dataset: str
    prompt_id: str
    endpoint: str
    dialect: str
    received_ms: int  # since the epoch
    attempt_id: str | None = None  # the reservation it was paid from
    provider: str | None = None
    model: str | None = None
    quantization: str | None = None
    generation_id: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_nanousd: int | None = None


@dataclass(frozen=True)
class PaidAnswer:
    """One answer as it came."""

    key: str
    meta: AnswerMeta
    body: bytes


@dataclass(frozen=True)
class Losses:
    """What opening found damaged. Whole answers after a damaged one are kept."""

    torn_bytes: int  # of an append that a kill cut short; it had not counted
    damaged: tuple[Damage, ...]  # stretches in which at least one answer was


class PaidAnswers:
    """The answers of one scope. One process writes; any number read what was there when they opened."""

    def __init__(
        self, folder: Path, *, read_only: bool = False, wait_seconds: float = 0, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Open, or create, `<store>/paid/<scope.name>`; a writer cuts back a torn tail.

        Raises:
            StoreError: another process writes there, and has not ended in `wait_seconds`.
            ArtifactInvalid: a part is not readable.
        """
        self.folder = folder
        self._index = KeyIndex()
        self._parts: dict[int, Part] = {}
        self._segments: dict[int, int] = {}  # segment: descriptor
        self._lock = threading.RLock()
        self._pending: dict[str, Future[int]] = {}
        self._compacting = threading.Lock()
        self._background: threading.Thread | None = None
        self._writer: DurableLog | None = None
        self._lock_file: int | None = None
        self._damage: list[Damage] = []
        if read_only:
            self._open_for_reading()
        else:
            self._open_for_writing(wait_seconds, segment_bytes)
        if self.losses.damaged:
            _log.warning(
                "%s: %d stretches are damaged, %d bytes in all; answers in them will be asked for again",
                folder,
                len(self.losses.damaged),
                sum(damage.end - damage.start for damage in self.losses.damaged),
            )

    @property
    def losses(self) -> Losses:
        """What was found damaged when this was opened."""
        return Losses(self._writer.torn_bytes if self._writer else 0, tuple(self._damage))

    def __len__(self) -> int:
        with self._lock:
            return len(self._index)

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return self._index.get(key) is not None

    def get(self, key: str) -> PaidAnswer | None:
        """The answer of a key, or None.

        Raises:
            ArtifactInvalid: it was there, but is damaged now.
        """
        with self._lock:
            place = self._index.get(key)
            answer = None if place is None else self._at(place)
        # the index knows the first half of a key
        return answer if answer is None or answer.key == key else None

    def each(self, keys: Iterable[str]) -> Iterator[PaidAnswer]:
        """The answers of those keys that are here, as they lie on disk, which is the fast way to read many."""
        with self._lock:
            known = [(place, key) for key in keys if (place := self._index.get(key)) is not None]
        for _, key in sorted(known):
            if (answer := self.get(key)) is not None:
                yield answer

    async def append(self, key: str, meta: AnswerMeta, raw_body: bytes) -> bool:
        """Keep an answer; it is on disk when this returns. False: the key was known, its first answer stays."""
        future, is_new = self._submit(key, meta, raw_body)
        await asyncio.wrap_future(future)
        return is_new

    def append_now(self, key: str, meta: AnswerMeta, raw_body: bytes) -> bool:
        """The same for callers without an event loop."""
        future, is_new = self._submit(key, meta, raw_body)
        future.result()
        return is_new

    def compact(self, *, all_segments: bool = True) -> int:
        """Move closed segments into Parquet; all: also the one that grows. Returns how many answers moved.

        Raises:
            StoreError: this was opened for reading only.
        """
        log = self._require_writer()
        with self._compacting:
            if all_segments:
                log.roll()
            return sum(self._compact_segment(segment) for segment in log.closed_segments)

    def close(self) -> None:
        """Write what was appended, free the lock. Answers stay where they are; `compact` moves them."""
        if self._writer:
            self._writer.close()
        if self._background:
            self._background.join()
        with self._lock:
            for descriptor in self._segments.values():
                os.close(descriptor)
            self._segments = {}
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def __enter__(self) -> PaidAnswers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open_for_writing(self, wait_seconds: float, segment_bytes: int) -> None:
        self._lock_file = lock_folder(self.folder, wait_seconds)
        try:
            finish_compaction(self.folder)
            parts = parts_in(self.folder)
            for segment in parts:
                self._add_part(segment)
            self._writer = DurableLog(
                self.folder,
                self._note,
                segment_bytes=segment_bytes,
                at_once=True,  # an answer that was read outlives a kill, however long the queue to the disk is
                on_durable=self._durable,
                least=max(numbers_in(self.folder), default=0) + 1,
            )
            self._damage = self._writer.damage
            for segment in segments_in(self.folder):
                self._open_segment(segment)
        except BaseException:
            os.close(self._lock_file)
            raise

    def _open_for_reading(self) -> None:
        if not self.folder.is_dir():
            return
        for attempt in range(_READ_ATTEMPTS):
            try:
                for segment in segments_in(self.folder):
                    self._read_segment(segment)
                break
            except FileNotFoundError:  # the writer has just made it a part
                if attempt == _READ_ATTEMPTS - 1:
                    raise
        for segment in parts_in(self.folder):
            self._add_part(segment)

    def _read_segment(self, segment: int) -> None:
        if segment in self._segments:
            return
        self._open_segment(segment)
        with open(self._segments[segment], "rb", closefd=False) as handle:
            content = handle.read()
        for item in scan(content, segment):
            if isinstance(item, Record):
                self._note(item)
            elif item.end < len(content):
                self._damage.append(item)

    def _open_segment(self, segment: int) -> None:
        if segment not in self._segments:
            self._segments[segment] = os.open(segment_path(self.folder, segment), os.O_RDONLY)

    def _add_part(self, segment: int) -> None:
        part = self._parts.setdefault(segment, Part(part_path(self.folder, segment)))
        for row, key in enumerate(part.column("key")):
            self._index.put(key, place_of(segment, row))

    def _note(self, record: Record) -> None:
        """Index a record; the first answer of a key stays."""
        key = record.payload[:32].hex()
        if self._index.get(key) is None:
            self._index.put(key, record.place)

    def _submit(self, key: str, meta: AnswerMeta, body: bytes) -> tuple[Future[int], bool]:
        log = self._require_writer()
        facts = json.dumps(asdict(meta), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        payload = b"".join([_PREFIX.pack(bytes.fromhex(key), len(facts)), facts, body])
        with self._lock:
            if (place := self._index.get(key)) is not None:
                known: Future[int] = Future()
                known.set_result(place)
                return known, False
            if (pending := self._pending.get(key)) is not None:
                return pending, False
            future = log.submit(payload, key)
            self._pending[key] = future
            return future, True

    def _durable(self, written: list[tuple[Any, int]]) -> None:
        with self._lock:
            for key, place in written:
                self._index.put(key, place)
                self._pending.pop(key, None)
                self._open_segment(parts_of(place)[0])
            may_compact = self._background is None or not self._background.is_alive()
        if may_compact and self._writer and self._writer.closed_segments:
            self._background = threading.Thread(target=self._compact_closed, name="paid-compaction", daemon=True)
            self._background.start()

    def _compact_closed(self) -> None:
        try:
            self.compact(all_segments=False)
        except (OSError, StoreError, ArtifactInvalid) as exc:
            _log.warning("%s: answers stay in the log, they could not be moved to Parquet: %s", self.folder, exc)

    def _compact_segment(self, segment: int) -> int:
        keys: list[str] = []

        def rows() -> Iterator[dict[str, Any]]:
            for record in segment_rows(self.folder, segment):
                answer = _unpack(record.payload)
                with self._lock:
                    is_first = self._index.get(answer.key) == record.place
                if is_first:
                    keys.append(answer.key)
                    yield {"key": answer.key, **asdict(answer.meta), "body": answer.body}

        count = write_part(self.folder, segment, PAID_ANSWERS, rows())
        with self._lock:
            if count:
                self._parts[segment] = Part(part_path(self.folder, segment))
            for row, key in enumerate(keys):
                self._index.put(key, place_of(segment, row))
            if (descriptor := self._segments.pop(segment, None)) is not None:
                os.close(descriptor)
        retire_segment(self.folder, segment)
        return count

    def _at(self, place: int) -> PaidAnswer:
        segment, offset = parts_of(place)
        if (part := self._parts.get(segment)) is not None:
            row = part.row(offset)
            return PaidAnswer(row.pop("key"), AnswerMeta(**{name: row[name] for name in _META}), row["body"])
        payload = read_record(self._segments[segment], segment, offset)
        if payload is None:
            raise ArtifactInvalid(
                f"{segment_path(self.folder, segment)}: the answer at byte {offset} is damaged since it was read; "
                "start again to have it asked for once more"
            )
        return _unpack(payload)

    def _require_writer(self) -> DurableLog:
        if self._writer is None:
            raise StoreError(f"{self.folder} was opened for reading: open it for writing to add answers")
        return self._writer


_META = [field.name for field in fields(AnswerMeta)]


def open_paid(store: Path, scope: Scope, *, read_only: bool = False, wait_seconds: float = 0) -> PaidAnswers:
    """The answers of a scope in a store; beside them, for people, what the scope is."""
    folder = store / "paid" / scope.name
    if not read_only and not (folder / "scope.json").exists():
        write_bytes(folder / "scope.json", json.dumps(asdict(scope), indent=1, ensure_ascii=False).encode())
    return PaidAnswers(folder, read_only=read_only, wait_seconds=wait_seconds)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def _unpack(payload: bytes) -> PaidAnswer:
    key, length = _PREFIX.unpack_from(payload)
    facts = json.loads(payload[_PREFIX.size : _PREFIX.size + length].decode("utf-8", "surrogatepass"))
    return PaidAnswer(key.hex(), AnswerMeta(**facts), payload[_PREFIX.size + length :])
