"""What Prefect and persistence add to a task run: artifact tasks that do nothing, against the same plain calls.

    python -m tests.benchmarks.flow_overhead

Prints seconds per task run, computed and cached (the aim is at most 0.1), beside the bare call that writes the same
file.
"""

from __future__ import annotations

import tests.environment  # noqa: F401  (before Prefect)

# isort: split
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.testing.utilities import prefect_test_harness

from schemas.measures import TRAINING_CURVE
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_table
from tasks.artifacts.store import open_store
from tasks.artifacts.task import artifact_task, workspace

TASKS = 100
ROWS = [{"step": step, "kind": "loss", "position": 0, "value": 1.0} for step in range(1000)]


@artifact_task(version="1")
def write_rows(number: int) -> Shards:
    """A task whose own work is one small table."""
    workspace().add_table("curve", "curve.parquet", TRAINING_CURVE.table(ROWS), TRAINING_CURVE)
    return workspace().publish({"number": number})


@flow(task_runner=cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=2)))
def many_tasks() -> float:
    """Seconds of all task runs, the flow's own start and end left out."""
    started = time.perf_counter()
    for future in [write_rows.submit(number) for number in range(TASKS)]:
        future.result()
    return time.perf_counter() - started


def bare(folder: Path) -> float:
    """Seconds of the same tables without tasks."""
    started = time.perf_counter()
    for number in range(TASKS):
        write_table(folder / f"{number}.parquet", TRAINING_CURVE.table(ROWS), TRAINING_CURVE)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: Path(scratch) / "store" / "results"}),
    ):
        open_store()
        plain = bare(Path(scratch) / "bare") / TASKS
        computed, cached = many_tasks() / TASKS, many_tasks() / TASKS
    print(f"bare call {plain:.4f} s, task run {computed:.4f} s ({computed - plain:+.4f}), cached {cached:.4f} s")


if __name__ == "__main__":
    main()
