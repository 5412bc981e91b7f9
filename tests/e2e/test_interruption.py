"""A run that has no Prefect server configured and is stopped takes its temporary server with it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from flows.server import Address
from tests.e2e.runs import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent"),
]


class Started:
    """`python -m flows.build_draft` as from a terminal, without a Prefect server, on a store and a home of its own."""

    def __init__(self, recipe: Path, folder: Path) -> None:
        self.store, self._home, self._log = folder / "store", folder / "prefect", folder / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
            "EYAS_STORE": str(self.store),
            "PREFECT_HOME": str(self._home),
            "PREFECT_SERVER_API_PORT": str(Address.free().port),
            "OMP_NUM_THREADS": "1",
        }
        with open(self._log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.build_draft", str(recipe)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
            )

    def relatives(self) -> set[int]:
        """The processes that live in this run's Prefect home, the run itself left out: its server."""
        mark = f"PREFECT_HOME={self._home}\0".encode()
        return {pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if mark in _environment(pid)} - {
            self.process.pid
        }

    def states(self, table: str) -> set[str]:
        """The states that the runs in a table of Prefect's database have, which its server can no longer change."""
        with closing(sqlite3.connect(self._home / "prefect.db")) as database:
            return {state for (state,) in database.execute(f"select state_type from {table}")}

    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], object], seconds: float) -> None:
        """Fails with what the run has printed when the condition does not come true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


@contextmanager
def started(recipe: Path, folder: Path) -> Iterator[Started]:
    run = Started(recipe, folder)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()
        for pid in run.relatives():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ids=["ctrl-c", "terminate", "kill"],
)
def test_no_server_outlives_a_run_that_is_stopped_while_tasks_run(
    how: signal.Signals, code: int, tiny_recipe: Path, tmp_path: Path
) -> None:
    with started(tiny_recipe, tmp_path) as run:
        run.wait_until(lambda: list((run.store / "index").glob("generate*/*.json")), 120)
        assert run.relatives(), run.said()
        run.process.send_signal(how)
        sent = time.monotonic()
        assert run.process.wait(timeout=30) == code, run.said()
        assert time.monotonic() - sent < 6
        assert ("the same command goes on" in run.said()) == (how != signal.SIGKILL)
        run.wait_until(lambda: not run.relatives(), 10)
        assert run.states("flow_run") == {"RUNNING" if how == signal.SIGKILL else "CRASHED"}


def test_no_server_outlives_a_run_that_is_stopped_while_the_server_starts(tiny_recipe: Path, tmp_path: Path) -> None:
    with started(tiny_recipe, tmp_path) as run:
        run.wait_until(lambda: "starting the Prefect server" in run.said(), 120)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(timeout=30) == 130, run.said()
        run.wait_until(lambda: not run.relatives(), 10)


def test_no_server_outlives_a_run_that_ends(tiny_recipe: Path, tmp_path: Path) -> None:
    with started(tiny_recipe, tmp_path) as run:
        assert run.process.wait(timeout=240) == 0, run.said()
        assert not run.relatives()
        assert "pending items" not in run.said(), "Prefect could not send its events and logs"
        assert run.states("flow_run") == run.states("task_run") == {"COMPLETED"}
