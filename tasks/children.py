"""Child processes that end with this one, however it ends, and take with them all that they have started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_KEEPER = Path(__file__).with_name("keeper.py")
_MARGIN_SECONDS = 35  # beyond what a child may take to end in order: its keeper kills what is left


class Child:
    """A command that runs under a keeper."""

    def __init__(self, keeper: subprocess.Popen[bytes], pid: int) -> None:
        self._keeper = keeper
        self.pid = pid
        """Of the command; its keeper is another process."""

    @property
    def output(self) -> IO[bytes] | None:
        """What it prints, if it was started with a pipe; whoever reads it closes it."""
        return self._keeper.stdout

    def ended(self, wait_seconds: float = 0) -> int | None:
        """The exit code once it has ended and nothing of it runs any more: 128 and the number if by a signal."""
        try:
            return self._keeper.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, seconds: float) -> None:
        """Have it end in order, or after so many seconds by force."""
        self._keeper.terminate()
        try:
            self._keeper.wait(seconds + _MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()


@contextlib.contextmanager
def child(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int, stop_seconds: float
) -> Iterator[Child]:
    """Run a command while the block runs, in a session of its own: Ctrl-C reaches only us.

    Args:
        command: program and arguments; the program must exist.
        environment: all of it.
        output: where both of its streams go, an open file or subprocess.PIPE.
        stop_seconds: the time that it has to end in order, at the end of the block.
    """
    reading, writing = os.pipe()
    with open(reading) as told:
        try:
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), str(os.getpid()), str(stop_seconds), str(writing), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[writing],
            )
        finally:
            os.close(writing)
        pid = int(told.readline() or -1)
    running = Child(keeper, pid)
    try:
        yield running
    finally:
        running.stop(stop_seconds)
