"""Stands between a process and a command that must not outlive it: when one ends, so does all that the command began.

    python -I -S keeper.py PARENT STOP_SECONDS DESCRIPTOR COMMAND...

Imports nothing of eyas. PARENT is the process to end with; the command's process id is written to DESCRIPTOR. SIGTERM
lets the command end in order within STOP_SECONDS. The exit code is the command's, or 128 and its signal's number.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

_POLL_SECONDS = 0.1
_LAST_SECONDS = 30  # a process that the kernel does not let go of is not waited for longer
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def main(arguments: list[str]) -> int:
    """Keep the command; returns its exit code."""
    parent, stop_seconds, descriptor, *command = arguments
    asked: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(time.monotonic()))
    if _LIBC:  # orphans of the command become ours
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(
        command,
        process_group=0,
        preexec_fn=partial(_die_with, os.getpid()),  # noqa: PLW1509 (this process has one thread)
    )
    with open(int(descriptor), "w") as told:
        told.write(f"{child.pid}\n")
    is_told = False
    while (code := _ended(child.pid)) is None and os.getppid() == int(parent):
        if asked and not is_told:
            is_told = True
            child.terminate()
        if asked and time.monotonic() - asked[0] > float(stop_seconds):
            break
        time.sleep(_POLL_SECONDS)
    return _end_all(child.pid, code)


def _die_with(keeper: int) -> None:
    """Runs in the command's process: the kernel kills it should the keeper be killed (Linux only)."""
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)


def _ended(command: int) -> int | None:
    """Reap whatever has ended; the command's exit code if it has."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == command:
                return os.waitstatus_to_exitcode(found[1])
    return None


def _end_all(command: int, code: int | None) -> int:
    """Kill the command and all that comes from it; its exit code."""
    deadline = time.monotonic() + _LAST_SECONDS
    while time.monotonic() < deadline:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(command, signal.SIGKILL)
        for pid in _descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found = _ended(command)
        code = found if code is None else code
        if not _has_children():
            break
        time.sleep(_POLL_SECONDS / 10)
    return 1 if code is None else code if code >= 0 else 128 - code


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    """All processes that come from this one (Linux; elsewhere the command's group must do)."""
    if not _LIBC:
        return []
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat") as stat:
            children.setdefault(int(stat.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found, waiting = [], [os.getpid()]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
