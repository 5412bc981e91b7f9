"""How far a long step is: a bar where a person looks at a terminal, log lines, and a Prefect progress artifact.

Reporting never changes or stops the work; the log lines of a step appear under its task run.
"""

from __future__ import annotations

import contextvars
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LOG_SECONDS = 10.0
ARTIFACT_SECONDS = 5.0
CLOSE_SECONDS = 2.0  # at the end of a step, for the last state to be sent

Publish = Callable[[float, str], None]


class Meter(Protocol):
    """What a step sees of its progress."""

    def advance(self, n: float = 1) -> None:
        """Count n more units as done; may be called from any thread."""


@contextmanager
def progress(name: str, total: float, unit: str) -> Iterator[Meter]:
    """Report the progress of one step while the block runs.

    Args:
        name: the step, as in "generate"; its logger is `eyas.<name>`.
        total: units of work in all.
        unit: what is counted, in the plural ("answers", "tokens").
    """
    publish = _artifact_publisher(name)
    sender = _Sender(publish, name) if publish else None
    meter = _Meter(name, total, unit, sender.submit if sender else None)
    with _bars.show(f"{name}, {unit}", total) as move, sender or nullcontext():
        meter.move = move
        try:
            yield meter
        finally:
            meter.close()


class _Meter:
    """Counts, and decides when a line or an artifact is due. A short step leaves neither."""

    def __init__(
        self, name: str, total: float, unit: str, publish: Publish | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.move: Callable[[float], None] = lambda n: None
        self._total, self._unit, self._publish, self._clock = total, unit, publish, clock
        self._log = logging.getLogger(f"eyas.{name}")
        self._context = contextvars.copy_context()  # so that lines from any thread appear under this task run
        self._lock = threading.Lock()
        self._done = 0.0
        self._started = self._logged = self._published = clock()
        self._has_artifact = False

    def advance(self, n: float = 1) -> None:
        with self._lock:
            self._done += n
            self.move(n)
            now = self._clock()
            if now - self._logged >= LOG_SECONDS:
                self._logged = now
                self._context.run(self._log.info, "%s", self._text(now))
            if self._publish and now - self._published >= ARTIFACT_SECONDS:
                self._published = now
                self._send(now)

    def close(self) -> None:
        """Bring the artifact, if one was made, to where the step ended."""
        with self._lock:
            if self._has_artifact:
                self._send(self._clock())

    def _send(self, now: float) -> None:
        if self._publish:
            self._publish(min(100.0, 100 * self._done / self._total) if self._total else 100.0, self._text(now))
            self._has_artifact = True

    def _text(self, now: float) -> str:
        rate = self._done / max(now - self._started, 1e-9)
        return f"{self._done:,.0f} of {self._total:,.0f} {self._unit}, {rate:,.1f} per second"


class _Sender:
    """Sends the newest state from a thread of its own: a slow or absent server must not hold up the work."""

    def __init__(self, publish: Publish, name: str) -> None:
        self._publish = publish
        self._log = logging.getLogger(f"eyas.{name}")
        self._context = contextvars.copy_context()
        self._wake = threading.Condition()
        self._newest: tuple[float, str] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, percent: float, text: str) -> None:
        """Replace whatever has not been sent yet; returns at once."""
        with self._wake:
            self._newest = (percent, text)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="progress-sender", daemon=True)
                self._thread.start()
            self._wake.notify()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (state := self._next()) is not None:
            try:
                self._publish(*state)
            except Exception as exc:  # noqa: BLE001 (whatever ails the API, which is another process, must not fail the work)
                self._context.run(self._log.warning, "progress is no longer sent to Prefect: %s", exc)
                return

    def _next(self) -> tuple[float, str] | None:
        with self._wake:
            while self._newest is None and not self._closed:
                self._wake.wait()
            state, self._newest = self._newest, None
            return state


def _artifact_publisher(name: str) -> Publish | None:
    """What sends percent and text to the running task's artifact, or None outside a task run."""
    if TaskRunContext.get() is None:
        return None
    context = contextvars.copy_context()  # advance() may come from a thread that does not know the task run
    key = "progress-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    made: list[UUID] = []

    def create(percent: float, text: str) -> UUID:
        return cast(UUID, create_progress_artifact(percent, key, text))

    def publish(percent: float, text: str) -> None:
        if made:
            context.run(update_progress_artifact, made[0], percent, text)
        else:
            made.append(context.run(create, percent, text))

    return publish


class _Bars:
    """The bars of all steps that run in this process, in one live display that exists while there is any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._display: Progress | None = None
        self._shown = 0

    @contextmanager
    def show(self, label: str, total: float) -> Iterator[Callable[[float], None]]:
        """Show one bar while the block runs; yields what moves it."""
        if not sys.stderr.isatty():
            yield lambda n: None
            return
        with self._lock:
            display = self._display or _open_display()
            self._display = display
            self._shown += 1
            bar = display.add_task(label, total=total)
        try:
            yield lambda n: display.advance(bar, n)
        finally:
            with self._lock:
                display.remove_task(bar)
                self._shown -= 1
                if not self._shown:
                    display.stop()
                    self._display = None


def _open_display() -> Progress:
    display = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    display.start()
    return display


_bars = _Bars()
