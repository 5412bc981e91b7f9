"""The ledger against the provider's own account: equal to the cent, explained, or a warning that says by how much."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.errors import BudgetExhausted
from schemas.serving import ServingSpec
from tasks.generate.http.client import Client, Endpoint
from tasks.generate.ledger import Ledger
from tasks.generate.serve.account import FILE, Reading, account_of, read_account
from tests.generate.crashing import entry
from tests.generate.serving import Run, faults, vocabulary
from tests.servers.fake import FakeServer, fake_server

NANOS_PER_MICRO = 1000


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    with fake_server(vocabulary=vocabulary(tmp_path_factory.mktemp("words") / "words.json")) as server:
        yield server


def run_on(server: FakeServer, store: Path, questions: int = 150, **serving: Any) -> Run:
    return Run(server.openrouter, str(store), questions=questions, serving=serving)


def ledger_folder(run: Run) -> Path:
    return Path(run.store) / "ledger" / "test"


def test_what_the_account_says_is_what_the_ledger_says(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_on(server, tmp_path / "store")
    with caplog.at_level(logging.INFO, "eyas.generate"):
        (row,) = run.read(run.answer(), "account")
    billed = server.summary()["billed_micros"] * NANOS_PER_MICRO
    assert row["account_nanousd"] == row["ledger_nanousd"] == billed > 0
    assert (row["verdict"], row["killed"], row["unknown_nanousd"], row["estimated_nanousd"]) == ("agrees", False, 0, 0)
    assert "they agree to the cent" in caplog.text


def test_a_run_that_goes_wrong_in_every_way_still_adds_up(server: FakeServer, tmp_path: Path) -> None:
    server.script(*faults(0.3))
    run = run_on(server, tmp_path / "store", 200)
    (row,) = run.read(run.answer(), "account")
    assert row["account_nanousd"] == server.summary()["billed_micros"] * NANOS_PER_MICRO
    assert row["verdict"] in ("agrees", "explained")
    assert abs(row["account_nanousd"] - row["ledger_nanousd"]) <= row["unknown_nanousd"] + row["estimated_nanousd"]


def test_each_run_is_compared_by_itself(server: FakeServer, tmp_path: Path) -> None:
    first = run_on(server, tmp_path / "store", 20)
    first.answer()
    run_on(server, tmp_path / "other", 30).answer()  # another program, while nothing is asked here
    second = run_on(server, tmp_path / "store", 40)
    rows = second.read(second.answer(), "account")
    assert [row["verdict"] for row in rows] == ["agrees", "agrees"]
    assert sum(row["ledger_nanousd"] for row in rows) < server.summary()["billed_micros"] * NANOS_PER_MICRO


def test_a_run_that_reaches_its_cap_is_compared_too(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_on(server, tmp_path / "store", budget={"usd": 0.004})
    with caplog.at_level(logging.INFO, "eyas.generate"), pytest.raises(BudgetExhausted):
        run.answer()
    assert [one.found.verdict for one in account_of(ledger_folder(run), {})] == ["agrees"]
    assert "they agree to the cent" in caplog.text


def test_what_others_spend_with_the_key_is_told(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_on(server, tmp_path / "store", 20)
    run.answer()
    used = server.summary()["billed_micros"] / 1e6
    start = account_of(ledger_folder(run), {})[-1].end.at_ms + 1
    with open(ledger_folder(run) / FILE, "ab") as handle:  # as a run that is killed leaves it
        handle.write(json.dumps({"at_ms": start, "moment": "before", "used_usd": str(used)}).encode() + b'\n{"at_m')
    run_on(server, tmp_path / "other", 200).answer()
    again = run_on(server, tmp_path / "store", 40)
    rows = again.read(again.answer(), "account")
    assert [(row["verdict"], row["killed"]) for row in rows] == [
        ("agrees", False),
        ("differs", True),
        ("agrees", False),
    ]
    assert rows[1]["account_nanousd"] - rows[1]["ledger_nanousd"] > 10**7
    assert "a line that is no reading" in caplog.text


def reading(at_ms: int, used: str, moment: str = "before") -> bytes:
    return json.dumps({"at_ms": at_ms, "moment": moment, "used_usd": used}).encode() + b"\n"


def test_requests_in_flight_at_a_kill_explain_what_they_may_have_cost(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.record(replace(entry(1), started_ms=1500, cost_nanousd=10**7))
    (tmp_path / FILE).write_bytes(reading(1000, "2") + reading(2000, "2.05") + reading(3000, "2.05", "after"))
    found = account_of(tmp_path, {"lost": 5 * 10**7})
    assert [one.found.verdict for one in found] == ["explained", "agrees"]
    assert [one.found.verdict for one in account_of(tmp_path, {})] == ["differs", "agrees"]


def test_a_server_without_an_account_is_told_and_nothing_is_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> Reading | None:
        where = Endpoint("http://one", "http://one")
        transport = httpx.MockTransport(lambda request: httpx.Response(404))
        async with Client([where], ServingSpec(), transport=transport) as client:
            return await read_account(client, [where], tmp_path, "before")

    assert asyncio.run(ask()) is None
    assert "the account cannot be read" in caplog.text
    assert account_of(tmp_path, {}) == []
