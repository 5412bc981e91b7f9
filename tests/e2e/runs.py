"""Flow runs in processes of their own, and what they leave in a store."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tasks.artifacts.locks import lock_name

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Server:
    """A running Prefect server."""

    api: str
    home: Path


class Runs:
    """Flow runs on one store, each in a process of its own (see zygote.py)."""

    def __init__(self, store: Path, server: Server, log: Path) -> None:
        self.store, self.log = store, log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.zygote"],
            cwd=ROOT,
            env=run_environment(store, server),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()

    def start(self, recipe: Path) -> int:
        """Start a run; returns its process id."""
        assert self._process.stdin
        self._process.stdin.write(f"{recipe} {self.log}\n")
        self._process.stdin.flush()
        return int(self._line().removeprefix("started "))

    def wait(self) -> int:
        """The exit code of the run that was started last."""
        return int(self._line().split()[-1])

    def run(self, recipe: Path) -> int:
        """Run to the end."""
        self.start(recipe)
        return self.wait()

    def said(self) -> str:
        """The end of what the runs printed, for messages of failed assertions."""
        return self.log.read_text()[-4000:]

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


def run_environment(store: Path, server: Server) -> dict[str, str]:
    """The environment of a flow run's process."""
    environment = os.environ | {
        "EYAS_STORE": str(store),
        "PREFECT_HOME": str(server.home),
        "PREFECT_API_URL": server.api,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PREFECT_RESULTS_LOCAL_STORAGE_PATH", None)
    return environment


@dataclass(frozen=True)
class Record:
    """One committed artifact of a store."""

    key: str
    task: str
    digest: str
    task_run: str


def committed(store: Path) -> dict[str, Record]:
    """The committed artifacts of a store by key; failures, which Prefect keeps too, are left out."""
    records = {}
    for path in (store / "index").rglob("*.json"):
        key = str(path.relative_to(store / "index")).removesuffix(".json")
        head = json.loads((pq.read_schema(store / "results" / key).metadata or {})[b"eyas"])
        if head["kind"] == "failure":
            continue
        stored = json.loads(path.read_bytes())["artifact"]
        records[key] = Record(key, key.split("/")[0], head["digest"], stored.get("task_run_id", ""))
    return records


def tasks_under_way(process: int, keys: Iterable[str]) -> set[str]:
    """The tasks that a live flow run has begun and not finished: it holds the lock files of their keys open.

    Args:
        process: the id of the flow run's process.
        keys: the keys that the flow run can come to.
    """
    opened = set()
    for descriptor in _descriptors(process):
        with contextlib.suppress(OSError):  # closed since it was listed
            opened.add(descriptor.readlink().name)
    return {key.split("/")[0] for key in keys if lock_name(key) in opened}


def _descriptors(process: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # the process has ended
        return []
