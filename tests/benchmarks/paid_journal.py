"""What the journal of paid answers costs: appends per second, each on disk before it counts, and memory of its index.

    python -m tests.benchmarks.paid_journal [folder]

Beside it a bare loop that writes the same bytes to a file, with one fsync for as many answers as the journal synced
together. The aim is 2,000 answers a second.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from tasks.generate.key_index import KeyIndex
from tasks.generate.paid import AnswerMeta, PaidAnswers

ANSWERS = 20_000
IN_FLIGHT = 2_000
BODY_BYTES = 4_000
KEYS = 1_000_000

META = AnswerMeta("chat", "0" * 32, "http://127.0.0.1:1", "openai-chat", 1)


def key(number: int) -> str:
    """A key like those of real answers."""
    return hashlib.sha256(b"%d" % number).hexdigest()


async def append_all(paid: PaidAnswers, keys: list[str], body: bytes) -> None:
    """Workers that each wait until their answer is on disk before they bring the next one."""
    queue = iter(keys)

    async def work() -> None:
        for name in queue:
            await paid.append(name, META, body)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def journal_rate(folder: Path, body: bytes) -> tuple[float, float]:
    """Answers per second, and answers per fsync."""
    keys, syncs, fsync = [key(number) for number in range(ANSWERS)], 0, os.fsync

    def counted(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        fsync(descriptor)

    with PaidAnswers(folder / "paid") as paid:
        os.fsync = counted
        try:
            started = time.perf_counter()
            asyncio.run(append_all(paid, keys, body))
            seconds = time.perf_counter() - started
        finally:
            os.fsync = fsync
        assert len(paid) == ANSWERS
        started = time.perf_counter()
        paid.compact()
        print(f"compaction to Parquet: {ANSWERS / (time.perf_counter() - started):,.0f} answers/s")
    return ANSWERS / seconds, ANSWERS / syncs


def bare_rate(folder: Path, body: bytes, together: int) -> float:
    """The same bytes in a bare loop."""
    with open(folder / "bare", "wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(0, ANSWERS, together):
            file.write(body * together)
            os.fsync(file.fileno())
        return ANSWERS / (time.perf_counter() - started)


def index_memory() -> tuple[float, float]:
    """Bytes per key, and microseconds per look-up."""
    names = [key(number) for number in range(KEYS)]
    tracemalloc.start()
    index = KeyIndex()
    for place, name in enumerate(names):
        index.put(name, place)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    started = time.perf_counter()
    assert all(index.get(name) is not None for name in names[:100_000])
    return held / KEYS, (time.perf_counter() - started) * 10


def main() -> None:
    """Measure and print."""
    where = sys.argv[1] if len(sys.argv) > 1 else None
    for size in (BODY_BYTES, 40_000):
        body = os.urandom(size)
        with tempfile.TemporaryDirectory(dir=where) as scratch:
            rate, together = journal_rate(Path(scratch), body)
            bare = bare_rate(Path(scratch), body, max(1, round(together)))
        print(f"{size:,} bytes: {rate:,.0f} answers/s, {together:.0f} per fsync; bare file {bare:,.0f} answers/s")
    per_key, look_up = index_memory()
    print(
        f"index: {per_key:.0f} bytes per key, {per_key * KEYS / 2**20:.0f} MiB for {KEYS:,}; look-up {look_up:.1f} µs"
    )


if __name__ == "__main__":
    main()
