"""Builds that are killed again and again, at random moments, end with the artifacts of an undisturbed one."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.artifacts.locks import FlockManager
from tests.e2e.runs import Runs, Server, committed, tasks_under_way

KILLS = 40
JOURNALED = re.compile(r"journaled batch (\w+)")


@dataclass
class Tally:
    """What the torment counted."""

    kills: int = 0
    attempts: int = 0
    builds: int = 0
    hit: Counter[str] = field(default_factory=Counter)  # by task: kills while it was under way; several can be at once

    def steps_hit(self) -> str:
        """How often each step was hit, most often first."""
        return ", ".join(f"{step} {times}" for step, times in self.hit.most_common())


def test_a_step_is_under_way_while_its_lock_is_held(store: Path) -> None:
    locks, keys = FlockManager(), ["train_draft/01.parquet", "export_draft/02.parquet"]
    assert tasks_under_way(os.getpid(), keys) == set()
    locks.acquire_lock(keys[0], "a task run")
    assert tasks_under_way(os.getpid(), keys) == {"train_draft"}
    locks.release_lock(keys[0], "a task run")
    assert tasks_under_way(os.getpid(), keys) == set()


def test_a_process_that_has_ended_has_no_step_under_way() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert tasks_under_way(child, ["train_draft/01.parquet"]) == set()


@pytest.mark.slow
def test_forty_kills_leave_the_artifacts_of_an_undisturbed_run(
    tiny_recipe: Path, finished_store: Path, server: Server, tmp_path: Path
) -> None:
    expected = {key: record.digest for key, record in committed(finished_store).items()}
    with Runs(tmp_path / "timed", server, tmp_path / "timed.log") as runs:
        started = time.monotonic()
        assert runs.run(tiny_recipe) == 0, runs.said()
        undisturbed = time.monotonic() - started
    dice, tally = random.Random(11), Tally()
    while tally.kills < KILLS:
        store = tmp_path / f"chaos-{tally.builds}"
        with Runs(store, server, store.with_suffix(".log")) as runs:
            _build_under_fire(runs, tiny_recipe, undisturbed, dice, list(expected), tally)
        assert {key: record.digest for key, record in committed(store).items()} == expected
        journaled = Counter(JOURNALED.findall(runs.log.read_text()))
        assert journaled
        assert not [batch for batch, times in journaled.items() if times > 1], "a completed answer was generated twice"
        assert [p for p in (store / "data").rglob("*") if p.name.endswith((".part", ".tmp"))] == []
    print(
        f"\nchaos: {tally.kills} kills in {tally.attempts} attempts at {tally.builds} builds; "
        f"an undisturbed build takes {undisturbed:.1f} s; steps under way when killed: {tally.steps_hit()}"
    )


def _build_under_fire(
    runs: Runs, recipe: Path, undisturbed: float, dice: random.Random, keys: list[str], tally: Tally
) -> None:
    """Kill attempts at random moments until one comes through; `keys` are those of the whole build."""
    for attempt in itertools.count():
        tally.attempts += 1
        child = runs.start(recipe)
        time.sleep(dice.uniform(0.2, 0.6 + attempt / 25) * undisturbed)  # ever longer, so that it ends
        under_way = tasks_under_way(child, keys)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = runs.wait()
        if code == 0:
            tally.builds += 1
            return
        assert code == -signal.SIGKILL, runs.said()
        tally.kills += 1
        tally.hit.update(under_way or {"between steps"})
