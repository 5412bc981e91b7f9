"""Answers and refusals of providers that went wrong for others, asked for as a run asks: by the number of each case.

010, 011, 013 and 022 are of an answer's text alone: tests/test_responses.py and tests/reconstruct/test_cases.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineError
from tasks.generate.budget import Budget, Caps
from tasks.generate.ledger import read_ledger
from tests.generate.serving import Run, vocabulary
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

CLIENT_TIMEOUT = 0.5  # seconds


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    with fake_server(vocabulary=vocabulary(tmp_path_factory.mktemp("words") / "words.json")) as server:
        yield server


def run_on(server: FakeServer, store: Path, **serving: Any) -> Run:
    return Run(server.openrouter, str(store), questions=2, serving={"retries": 2, **serving})


def ledger_of(run: Run) -> list[dict[str, Any]]:
    return sorted(read_ledger(Path(run.store) / "ledger" / "test").to_pylist(), key=lambda row: row["started_ms"])


@pytest.mark.parametrize(
    ("fault", "stream", "outcome"),
    [
        pytest.param(Fault("error_in_body", times=1), False, "rate_limited", id="api-001"),
        pytest.param(Fault("error_in_choice", times=1), False, "server_error", id="api-002"),
        pytest.param(Fault("padded", times=1), False, None, id="api-004"),
        pytest.param(Fault("padded", times=1), True, None, id="api-006"),
        pytest.param(Fault("error_in_stream", times=1), True, "rate_limited", id="api-007"),
    ],
)
def test_what_is_no_answer_is_asked_again_and_what_only_looks_odd_is_not(
    fault: Fault, stream: bool, outcome: str | None, server: FakeServer, tmp_path: Path
) -> None:
    server.script(fault)
    run = run_on(server, tmp_path, stream=stream)
    rows = run.read(run.answer(), "answers")
    assert len(rows) == 2
    assert all(row["content"] and row["finish_reason"] == "stop" for row in rows)
    failed = [row["outcome"] for row in ledger_of(run) if row["outcome"] != "answered"]
    assert failed == ([outcome] if outcome else [])
    assert server.summary()["requests"] == 2 + len(failed)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "reasoning_details", "all"])
def test_api_008_reasoning_is_one_text_under_whatever_names(name: str, server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("reasoning_field", probability=1, options={"name": name}))
    run = run_on(server, tmp_path)
    result = run.answer()
    rows = run.read(result, "answers")
    assert all(row["reasoning"] and row["content"] and row["reasoning"] not in row["content"] for row in rows)
    assert [row["reasoning_share"] for row in run.read(result, "datasets")] == [1.0, 1.0]


def test_api_013_reasoning_inside_the_billed_count_is_not_added_to_it(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("reasoning_field", probability=1))
    run = run_on(server, tmp_path)
    rows = run.read(run.answer(), "answers")
    billed = sum(row["completion_tokens"] + row["prompt_tokens"] for row in rows)
    assert all(0 < row["reasoning_tokens"] < row["completion_tokens"] for row in rows)
    with Budget(Path(run.store) / "budget" / "test", Caps()) as budget:
        assert budget.totals().settled_tokens == billed


def test_api_014_an_answer_without_usage_moves_the_budget_and_is_marked(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("no_usage", probability=1))
    price = {"prompt_usd_per_million": 0.55, "completion_usd_per_million": 2.19}
    run = Run(server.url, str(tmp_path), "openai", questions=2, serving={"price": price})
    rows = run.read(run.answer(), "answers")
    assert [row["completion_tokens"] for row in rows] == [None, None]
    entries = ledger_of(run)
    assert all(row["estimated"] and row["cost_nanousd"] > 0 and row["completion_tokens"] > 12 for row in entries)
    with Budget(Path(run.store) / "budget" / "test", Caps()) as budget:
        totals = budget.totals()
    assert totals.settled_nanousd == sum(row["cost_nanousd"] for row in entries)
    assert totals.estimated == 2


@pytest.mark.parametrize("stream", [False, True])
def test_api_015_an_answer_that_was_given_up_may_be_charged_and_its_retry_is_a_second_charge(
    stream: bool, server: FakeServer, tmp_path: Path
) -> None:
    server.script(Fault("stall_middle", times=1))
    run = run_on(server, tmp_path, stream=stream, idle_seconds=CLIENT_TIMEOUT)
    run.answer()
    lost, *others = ledger_of(run)
    assert lost["outcome"] == "idle"
    assert [row["outcome"] for row in others] == ["answered", "answered"]
    assert [row["retry"] for row in others].count(1) == 1
    with Budget(Path(run.store) / "budget" / "test", Caps()) as budget:
        totals = budget.totals()
    billed = server.summary()["billed_micros"] * 1000
    if lost["generation_id"]:  # what had come of the answer names it, so that its bill was asked for
        assert (lost["billed"], totals.kept) == ("yes", 0)
        assert totals.settled_nanousd == billed
    else:
        assert (lost["billed"], totals.kept) == ("unknown", 1)
        assert totals.settled_nanousd < billed <= totals.settled_nanousd + totals.reserved_nanousd


def test_api_016_a_rest_that_the_server_asks_for_is_kept_by_all(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("status", times=1, options={"status": 429, "retry_after": "1"}))
    run = run_on(server, tmp_path)
    run.questions, run.concurrency = 40, 1
    run.answer()
    refused, *others = ledger_of(run)
    assert (refused["outcome"], refused["billed"]) == ("rate_limited", "no")
    assert all(row["started_ms"] >= refused["started_ms"] + 1000 for row in others)


def test_api_017_without_credits_the_run_stops_and_goes_on_later(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path)
    run.questions, run.concurrency = 30, 2
    server.script(Fault("status", probability=0.2, options={"status": 402, "message": "Insufficient credits"}))
    with pytest.raises(EngineError, match=r"Insufficient credits.*answers are kept, start again to go on"):
        run.answer()
    assert server.summary()["requests"] < 30
    server.script()
    assert len(run.read(run.answer(), "answers")) == 30
    assert {tally["answered"] for tally in server.summary()["keys"].values()} == {1}


def test_api_018_a_host_with_another_quantization_is_quarantined(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("other_quantization", times=1))
    run = run_on(server, tmp_path, provider={"ignore": ["fireworks", "baseten"], "quantizations": ["fp8"]})
    (row,) = run.read(run.answer(), "quarantine")
    assert (row["reason"], row["detail"]) == (
        "answer_not_allowed",
        "quantization fp4 of provider OtherHost is not allowed",
    )
