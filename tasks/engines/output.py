"""What a server prints: all of it to a file, without secrets; to the task's log what a person should see."""

from __future__ import annotations

import contextvars
import logging
import re
import threading
from collections import deque
from typing import IO

from tasks.artifacts.redaction import redact

_KEPT_LINES = 25
_LAST_SECONDS = 5.0
_TROUBLE = re.compile(r"\b(warning|error|critical|fatal|traceback|exception|killed)\b", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_log = logging.getLogger("eyas.engines")


class Output:
    """Reads what a child prints, in a thread of its own. The block must end after the child."""

    def __init__(self, log: IO[bytes], engine: str) -> None:
        self._log, self._engine = log, engine
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._is_starting, self._is_ending = True, False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_error: object) -> None:
        self.finish()

    def follow(self, source: IO[bytes]) -> None:
        """Read until the other end is closed."""
        context = contextvars.copy_context()  # so that lines appear under this task run
        name = f"{self._engine}-output"
        self._thread = threading.Thread(target=context.run, args=(self._read, source), name=name, daemon=True)
        self._thread.start()

    def started(self) -> None:
        """From now on only trouble is worth a line in the task's log."""
        self._is_starting = False

    def ending(self) -> None:
        """From now on nothing is: a server that is told to stop in the middle of its work complains."""
        self._is_ending = True

    def finish(self) -> None:
        """Wait for the last lines of a child that has ended."""
        if self._thread:
            self._thread.join(_LAST_SECONDS)

    def tail(self) -> str:
        """The last lines, for an error."""
        lines = "\n".join(tuple(self._lines)) or "(nothing)"
        return f"the end of {self._log.name}:\n{lines}"

    def _read(self, source: IO[bytes]) -> None:
        with source:
            for raw in iter(source.readline, b""):
                # of a bar that is drawn over and over, the last state
                if line := redact(_COLOUR.sub("", raw.decode(errors="replace")).rstrip().rsplit("\r", 1)[-1]):
                    self._take(line)

    def _take(self, line: str) -> None:
        self._lines.append(line)
        self._log.write(line.encode() + b"\n")
        self._log.flush()
        if self._is_ending:
            return
        if _TROUBLE.search(line):
            _log.warning("%s: %s", self._engine, line)
        elif self._is_starting:
            _log.info("%s: %s", self._engine, line)
