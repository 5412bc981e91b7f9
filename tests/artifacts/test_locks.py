"""Locks: one holder per key, freed when the holder dies."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.artifacts.locks import FlockManager

pytestmark = pytest.mark.usefixtures("store")


@contextmanager
def held_by_another_process(key: str) -> Iterator[int]:
    """A child process that holds the lock of a key; yields its id."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        FlockManager().acquire_lock(key, "child")
        os.write(tell, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_one_holder_at_a_time() -> None:
    one, other = FlockManager(), FlockManager()
    assert one.acquire_lock("task/a.parquet", "me")
    assert one.acquire_lock("task/a.parquet", "me"), "a holder may ask again"
    assert not one.acquire_lock("task/a.parquet", "you", acquire_timeout=0)
    assert not other.acquire_lock("task/a.parquet", "me", acquire_timeout=0.1)
    assert other.is_locked("task/a.parquet")
    assert not other.is_locked("task/b.parquet")
    assert one.is_lock_holder("task/a.parquet", "me")
    assert not one.is_lock_holder("task/a.parquet", "you")
    one.release_lock("task/a.parquet", "me")
    assert other.acquire_lock("task/a.parquet", "me", acquire_timeout=0)
    other.release_lock("task/a.parquet", "me")


def test_releasing_what_is_not_held_is_an_error() -> None:
    with pytest.raises(ValueError, match="holds no lock"):
        FlockManager().release_lock("task/a.parquet", "me")


@pytest.mark.parametrize("key", ["a", "task/a.b", "task/a.c", "deep/er/key", "x" * 400])
def test_keys_that_resemble_each_other_are_different_locks(key: str) -> None:
    locks = FlockManager()
    assert locks.acquire_lock(key, "me", acquire_timeout=0)
    assert locks.acquire_lock(key + "'", "me", acquire_timeout=0)


def test_a_killed_holder_frees_its_lock() -> None:
    locks = FlockManager()
    with held_by_another_process("task/a.parquet"):
        assert locks.is_locked("task/a.parquet")
        assert not locks.acquire_lock("task/a.parquet", "me", acquire_timeout=0)
    assert not locks.is_locked("task/a.parquet")
    assert locks.acquire_lock("task/a.parquet", "me", acquire_timeout=0)


def test_a_waiter_goes_on_when_the_holder_is_killed() -> None:
    locks = FlockManager()
    with held_by_another_process("task/a.parquet") as holder:
        threading.Timer(0.2, os.kill, (holder, signal.SIGKILL)).start()
        assert locks.wait_for_lock("task/a.parquet", timeout=30)
        assert locks.acquire_lock("task/a.parquet", "me", acquire_timeout=30)


def test_waiting_ends_at_its_limit() -> None:
    with held_by_another_process("task/a.parquet"):
        assert not FlockManager().wait_for_lock("task/a.parquet", timeout=0.1)


def test_tasks_of_an_event_loop_wait_without_blocking_it() -> None:
    async def both() -> list[bool]:
        locks = FlockManager()
        assert await locks.aacquire_lock("k", "one")
        waiting = asyncio.create_task(locks.aacquire_lock("k", "other", acquire_timeout=30))
        await asyncio.sleep(0.1)
        locks.release_lock("k", "one")
        return [await waiting, await locks.aacquire_lock("k", "third", acquire_timeout=0.1)]

    assert asyncio.run(both()) == [True, False]


def test_copies_share_the_lock_and_unpickled_managers_hold_nothing() -> None:
    locks = FlockManager()
    locks.acquire_lock("k", "me")
    assert copy.deepcopy(locks) is locks
    assert not pickle.loads(pickle.dumps(locks)).is_lock_holder("k", "me")  # noqa: S301 (our own bytes)


def test_lock_files_lie_in_the_store(store: Path) -> None:
    FlockManager().acquire_lock("task/a.parquet", "me")
    assert len(list((store / "locks").iterdir())) == 1
