"""How far a run is can be read by another process, while it goes on, after it ended, and after it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.status import lines, print_status
from schemas.errors import BudgetExhausted, RecipeError, StoreError
from schemas.ledger import LEDGER
from schemas.recipe import Recipe, load_recipe
from tasks.generate import dispatch
from tasks.generate.ledger import read_ledger
from tasks.generate.status import FILE, Standing, Status, read_status, status_of
from tests.flows.recipes import write_recipe
from tests.generate.crashing import entry
from tests.generate.serving import ROOT, Run, vocabulary
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

NOW = 1_700_000_100_000
STANDING = Standing("generate", NOW, "", {"B3": 10, "B4": 5}, {"B3": 4}, 2 * 10**9, 10**9, 700, cap=5 * 10**9)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabulary(tmp_path_factory.mktemp("words") / "words.json")


@pytest.fixture
def slow(words: Path) -> Iterator[FakeServer]:
    with fake_server(vocabulary=words, latency=0.2) as server:
        yield server


def run_on(server: FakeServer, store: Path, **serving: Any) -> Run:
    run = Run(server.openrouter, str(store), questions=100, serving=serving)
    run.concurrency = 4
    return run


def attempt(number: int, **changes: Any) -> dict[str, Any]:
    row = vars(entry(number)) | {"dataset": "B3", "started_ms": NOW - 20_000, "latency_ms": 1000, "prompt_tokens": 5}
    return row | {"completion_tokens": 50, "outcome": "answered", "billed": "yes", "cost_nanousd": 7} | changes


def status(*rows: dict[str, Any], standing: Standing = STANDING) -> Status:
    return status_of(standing, LEDGER.table(rows))


def test_attempts_of_the_last_minute_make_the_pace() -> None:
    old = [attempt(n, started_ms=NOW - 900_000) for n in range(50)]
    found = status(*old, *(attempt(100 + n) for n in range(30)))
    assert (found.requests_per_second, found.tokens_per_second) == (0.5, 25)
    assert (found.left, found.seconds_left) == (11, 22)
    assert found.datasets[0].tokens == 80 * 55
    assert [(one.name, one.done, one.prompts) for one in found.datasets] == [("B3", 4, 10), ("B4", 0, 5)]


def test_a_run_that_has_just_begun_is_paced_by_the_time_it_had() -> None:
    found = status(*(attempt(n, started_ms=NOW - 10_000) for n in range(20)))
    assert found.requests_per_second == 2


def test_errors_are_counted_by_dataset_and_class() -> None:
    failed = {"outcome": "rate_limited", "billed": "no", "cost_nanousd": 0, "completion_tokens": None}
    lost = {"outcome": "idle", "billed": "unknown", "cost_nanousd": None, "worst_nanousd": 90}
    found = status(attempt(1), attempt(2, **failed), attempt(3, **failed), attempt(4, dataset="B4", **lost))
    assert [one.errors for one in found.datasets] == [{"rate_limited": 2}, {"idle": 1}]
    assert (found.spent_nanousd, found.unknown_nanousd) == (7, 90)


def test_lines_say_how_it_goes_and_what_is_left_of_the_budget() -> None:
    state, spent, pace = lines(status(*(attempt(n) for n in range(20))), NOW / 1000 + 3)
    assert state == f"generate goes on (process {os.getpid()} on {STANDING.host}, told 3 s ago)"
    assert spent == ("spent $2.00 and 700 tokens of $5.00; $1.00 more at most for what is in flight or of unknown bill")
    assert pace == "1.0 requests/s, 50 tokens/s in the last minute; 11 prompts left, time to go 0:00:11"


def test_a_run_whose_process_is_gone_says_so() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    state, _ = lines(status(standing=replace(STANDING, process=gone.pid)), NOW / 1000)
    assert state == "generate: its process is gone (told 0 s ago); the same command goes on"


def test_a_pilot_that_is_answered_waits_for_approval() -> None:
    state, *_ = lines(status(standing=replace(STANDING, phase="pilot", ended="finished")), NOW / 1000)
    assert state == "the pilot is answered (told 0 s ago); what is left waits for approval"


def test_what_was_never_asked_has_no_status(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no server has been asked for nothing yet"):
        read_status(tmp_path, "nothing")


def test_a_run_is_followed_while_it_goes_on(slow: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_LOG_SECONDS", 0.1)
    slow.script(Fault("status", times=3, options={"status": 500}))
    run = run_on(slow, tmp_path)
    worker = threading.Thread(target=run.answer)
    worker.start()
    try:
        deadline = time.monotonic() + 60
        while (
            not (folder := tmp_path / "ledger" / "test" / FILE).exists() or not read_status(tmp_path, "test").left < 90
        ):
            assert time.monotonic() < deadline, folder
            time.sleep(0.05)
        during = read_status(tmp_path, "test")
    finally:
        worker.join()
    assert during.standing.is_alive
    assert 0 < during.left < 90
    assert during.requests_per_second > 0
    assert sum(sum(one.errors.values()) for one in during.datasets) == 3
    after = read_status(tmp_path, "test")
    assert (after.left, after.standing.ended, after.standing.is_alive) == (0, "finished", False)
    assert after.standing.settled == after.spent_nanousd == slow.summary()["billed_micros"] * 1000


def test_a_run_that_reached_its_cap_says_so(slow: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(BudgetExhausted):
        run_on(slow, tmp_path, budget={"usd": 0.001}).answer()
    found = read_status(tmp_path, "test")
    assert found.standing.ended == "stopped at a cap"
    assert found.standing.cap == 10**6


def test_a_run_that_was_killed_leaves_a_status(slow: FakeServer, tmp_path: Path) -> None:
    run = run_on(slow, tmp_path)
    child = subprocess.Popen(run.command(), cwd=ROOT)
    while slow.summary()["answered"] < 5:
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    found = read_status(tmp_path, "test")
    assert not found.standing.is_alive
    assert "its process is gone" in lines(found, time.time())[0]
    assert sum(one.tokens for one in found.datasets) > 0
    assert len(read_ledger(tmp_path / "ledger" / "test")) >= 5


def test_a_damaged_status_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "ledger" / "test"
    folder.mkdir(parents=True)
    (folder / FILE).write_text("{")
    with pytest.raises(StoreError, match=r"standing.json cannot be read"):
        read_status(tmp_path, "test")


class TestPrinting:
    def recipe(self, folder: Path, target: Path, engine: str) -> Recipe:
        served = {"engine": engine, "serving": {"endpoints": [{"url": "http://127.0.0.1:9"}], "model": "m"}}
        generation = {} if engine == "transformers" else served
        return load_recipe(
            write_recipe(folder, target, generation=generation, corpus={"heldout": 2, "max_length": 512})
        )

    def test_a_table_by_dataset(self, store: Path, tiny_target: Path, tmp_path: Path) -> None:
        (store / "ledger" / "tiny").mkdir(parents=True)
        STANDING.write(store / "ledger" / "tiny")
        console = Console(width=120, record=True)
        print_status(self.recipe(tmp_path, tiny_target, "openrouter"), console)
        said = console.export_text()
        assert "Answers of tiny" in said
        assert [line.split()[1::2] for line in said.splitlines() if "B3" in line] == [
            ["B3", "4", "10", "0", "$0.00", "none"]
        ]
        assert json.loads((store / "ledger" / "tiny" / FILE).read_bytes())["prompts"] == {"B3": 10, "B4": 5}

    def test_a_recipe_without_servers_has_none(self, store: Path, tiny_target: Path, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match="answers from servers"):
            print_status(self.recipe(tmp_path, tiny_target, "transformers"))
