"""Per-key locks on flock files: the kernel frees them when the holder dies, whatever killed it. One host or NFSv4."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from pathlib import Path
from typing import Any

from prefect.locking.protocol import LockManager

from tasks.artifacts.store import store_root

_POLL_SECONDS = 0.05


class FlockManager(LockManager):
    """Prefect's lock protocol on one flock file per key. Copies and unpickled instances hold nothing."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> FlockManager:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._held = {}

    def acquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        if (key, holder) in self._held:
            return True
        descriptor = os.open(_lock_file(key), os.O_CREAT | os.O_RDWR, 0o644)
        deadline = None if acquire_timeout is None else time.monotonic() + acquire_timeout
        while not _try_lock(descriptor):
            if deadline is not None and time.monotonic() >= deadline:
                os.close(descriptor)
                return False
            time.sleep(_POLL_SECONDS)
        self._held[(key, holder)] = descriptor
        return True

    async def aacquire_lock(
        self, key: str, holder: str, acquire_timeout: float | None = None, hold_timeout: float | None = None
    ) -> bool:
        deadline = None if acquire_timeout is None else time.monotonic() + acquire_timeout
        while not self.acquire_lock(key, holder, acquire_timeout=0):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def release_lock(self, key: str, holder: str) -> None:
        descriptor = self._held.pop((key, holder), None)
        if descriptor is None:
            raise ValueError(f"{holder} holds no lock on {key}")
        os.close(descriptor)

    def is_locked(self, key: str) -> bool:
        if any(held == key for held, _ in list(self._held)):
            return True
        descriptor = os.open(_lock_file(key), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def is_lock_holder(self, key: str, holder: str) -> bool:
        return (key, holder) in self._held

    def wait_for_lock(self, key: str, timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_locked(key):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    async def await_for_lock(self, key: str, timeout: float | None = None) -> bool:
        return await asyncio.to_thread(self.wait_for_lock, key, timeout)


def lock_name(key: str) -> str:
    """The name of a key's lock file."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.lock"


def _lock_file(key: str) -> Path:
    path = store_root() / "locks" / lock_name(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
