"""A pilot asks a few prompts of each dataset, keeps their answers, and says what the rest will take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.ledger import LEDGER
from tasks.generate.ledger import read_ledger, total
from tasks.generate.pilot import pilot_of, speeds_of
from tasks.generate.served import partitioned
from tests.generate.crashing import entry
from tests.generate.serving import Run, url_of, vocabulary
from tests.servers.answers import key_of
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

PILOT = 12


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    with fake_server(vocabulary=vocabulary(tmp_path_factory.mktemp("words") / "words.json")) as server:
        yield server


def run_on(server: FakeServer, store: Path, questions: int = 100, engine: str = "openrouter", **serving: Any) -> Run:
    return Run(url_of(server, engine), str(store / "store"), engine, questions, serving=serving)


def rows_of(run: Run, pilot: int = PILOT) -> dict[str, dict[str, Any]]:
    return {row["dataset"]: row for row in run.forecast(pilot).table.to_pylist()}


def spent_after(run: Run, before: int) -> float:
    return (total(read_ledger(Path(run.store) / "ledger" / "test")).cost_nanousd - before) / 1e9


def test_the_rest_costs_what_was_foretold_and_the_pilot_is_not_asked_again(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path)
    rows = rows_of(run)
    asked = server.summary()
    assert {name: (row["prompts"], row["pilot"]) for name, row in rows.items()} == {
        "chat": (38, 12),
        "code": (38, 12),
        "": (76, 24),
    }
    assert asked["requests"] == 24
    before = total(read_ledger(Path(run.store) / "ledger" / "test")).cost_nanousd
    run.answer()
    spent = spent_after(run, before)
    assert server.summary()["requests"] == 100
    assert rows[""]["usd_low"] <= spent <= rows[""]["usd_high"]
    assert spent < rows[""]["usd_worst"]
    assert rows[""]["usd"] == pytest.approx(rows["chat"]["usd"] + rows["code"]["usd"])
    assert 0 < rows[""]["hours_low"] <= rows[""]["hours"] <= rows[""]["hours_high"]


def test_turns_whose_history_nobody_has_yet_are_foretold_too(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path, questions=0)
    run.talks = 20
    rows = rows_of(run)
    assert (rows["talks"]["prompts"], rows["talks"]["pilot"]) == (60 - 12, 12)
    before = total(read_ledger(Path(run.store) / "ledger" / "test"))
    run.answer()
    after = total(read_ledger(Path(run.store) / "ledger" / "test"))
    assert rows["talks"]["prompt_tokens"] == pytest.approx(after.prompt_tokens - before.prompt_tokens, rel=0.5)
    assert rows["talks"]["usd_low"] * 0.9 <= spent_after(run, before.cost_nanousd) <= rows["talks"]["usd_high"] * 1.1


def test_nothing_left_costs_nothing(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path, 30)
    run.answer()
    server.reset()
    forecast = run.forecast(PILOT)
    (row,) = forecast.table.to_pylist()
    assert (row["dataset"], row["prompts"], row["usd"], row["usd_worst"]) == ("", 0, 0, 0)
    assert forecast.facts["worst_request_nanousd"] == 0
    assert server.summary()["requests"] == 0


def test_of_a_dataset_that_has_grown_only_what_is_new_is_foretold(server: FakeServer, tmp_path: Path) -> None:
    run_on(server, tmp_path, 60).answer()
    server.reset()
    rows = rows_of(run_on(server, tmp_path, 66))
    assert server.summary()["requests"] + rows[""]["prompts"] == 6
    assert rows[""]["pilot"] == 0 or rows[""]["pilot"] >= PILOT


def test_a_dataset_of_few_prompts_is_asked_whole(server: FakeServer, tmp_path: Path) -> None:
    rows = rows_of(run_on(server, tmp_path, 10))
    assert rows[""]["prompts"] == 0
    assert server.summary()["requests"] == 10


def test_without_answers_the_limit_is_expected_and_told(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_on(server, tmp_path, 40, retries=0)
    asked = [
        row["messages"] for part in pilot_of(parts_of(run), 3) for row in rows_in(part) if row["dataset"] == "code"
    ]
    server.script(*(Fault("status", probability=1, key=key_of_messages(one), options={"status": 500}) for one in asked))
    rows = rows_of(run, 3)
    assert rows["code"]["completion_tokens"] == rows["code"]["prompts"] * 64
    assert rows["chat"]["completion_tokens"] < rows["chat"]["prompts"] * 64
    assert "the pilot has 0 answers of code" in caplog.text


def parts_of(run: Run) -> Any:
    return partitioned(run.table(), {"chat": "short", "code": "short", "talks": "long"}, run.spec.serving)


def rows_in(partition: Any) -> list[dict[str, Any]]:
    return [row for start, stop in partition.bounds for row in partition.table.slice(start, stop - start).to_pylist()]


def key_of_messages(messages: str) -> str:
    return key_of({"messages": json.loads(messages)})


def test_a_pilot_holds_whole_conversations_of_every_dataset(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path, 40)
    run.talks = 9
    rows = [row for part in pilot_of(parts_of(run), 4) for row in rows_in(part)]
    counts = {name: sum(row["dataset"] == name for row in rows) for name in ("chat", "code", "talks")}
    assert counts == {"chat": 4, "code": 4, "talks": 6}


def test_money_that_was_committed_before_the_pilot_is_told_apart(server: FakeServer, tmp_path: Path) -> None:
    run_on(server, tmp_path, 20).answer()
    before = server.summary()["billed_micros"] * 1000
    facts = run_on(server, tmp_path, 100).forecast(PILOT).facts
    assert facts["baseline_nanousd"] == before
    assert facts["committed_nanousd"] == server.summary()["billed_micros"] * 1000 > before


def test_speeds_are_those_of_one_request_times_as_many_and_of_all_together() -> None:
    rows = [vars(entry(n)) | {"started_ms": 1000 * (n // 2), "latency_ms": 1000} for n in range(6)]
    rows = [row | {"completion_tokens": 50, "outcome": "answered", "billed": "yes"} for row in rows]
    speeds = speeds_of(LEDGER.table(rows), 10)
    assert speeds
    assert (speeds.each, speeds.measured) == (500, 100)
    assert speeds_of(LEDGER.table([]), 10) is None


def test_a_pilot_that_is_the_same_is_drawn_the_same(server: FakeServer, tmp_path: Path) -> None:
    assert rows_of(run_on(server, tmp_path))["chat"]["usd"] == rows_of(run_on(server, tmp_path))["chat"]["usd"]
    assert server.summary()["requests"] == 2 * PILOT
