"""Stop now, from any thread or signal handler: whoever asks servers is told once, and ends in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a signal's handler may come while its own thread is in here
_running: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
_told: set[asyncio.Event] = set()


@contextmanager
def stoppable() -> Iterator[asyncio.Event]:
    """An event of the running loop that is set when a stop is requested while the block runs."""
    event = asyncio.Event()
    with _lock:
        _running[event] = asyncio.get_running_loop()
    try:
        yield event
    finally:
        with _lock:
            del _running[event]
            _told.discard(event)


def request_stop() -> bool:
    """Tell all that run; whether there was any that had not been told."""
    with _lock:
        new = _running.keys() - _told
        for event in new:
            _running[event].call_soon_threadsafe(event.set)
        _told.update(new)
    return bool(new)
