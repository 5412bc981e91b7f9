"""Whether processes still run."""

from __future__ import annotations

import time
from pathlib import Path

_WAIT_SECONDS = 15


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_until_gone(*pids: int) -> None:
    """Fails when one of them does not end."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} still run"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """All processes that come from one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    found, waiting = set(), [pid]
    while waiting:
        born = children.get(waiting.pop(), [])
        found.update(born)
        waiting += born
    return found
