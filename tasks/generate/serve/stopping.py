"""Stop now, from any thread or signal handler: whoever asks servers is told once, and ends in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a signal's handler may come while its own thread is in here
_running: dict[object, Callable[[], object]] = {}
_told: set[object] = set()


@contextmanager
def stoppable() -> Iterator[asyncio.Event]:
    """An event of the running loop that is set when a stop is requested while the block runs."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    with _registered(lambda: loop.call_soon_threadsafe(event.set)):
        yield event


@contextmanager
def stoppable_wait() -> Iterator[Callable[[], bool]]:
    """Outside of a loop: whether a stop was requested since the block began."""
    event = threading.Event()
    with _registered(event.set):
        yield event.is_set


def request_stop() -> bool:
    """Tell all that run; whether there was any that had not been told."""
    with _lock:
        new = _running.keys() - _told
        for entry in new:
            _running[entry]()
        _told.update(new)
    return bool(new)


@contextmanager
def _registered(tell: Callable[[], object]) -> Iterator[None]:
    entry = object()
    with _lock:
        _running[entry] = tell
    try:
        yield
    finally:
        with _lock:
            del _running[entry]
            _told.discard(entry)
