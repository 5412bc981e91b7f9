"""Servers that go wrong in every way are asked until each prompt has one answer, and for no more than was allowed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import BudgetExhausted, EngineError, RunStopped
from tasks.generate.budget import Budget, Caps
from tasks.generate.ledger import read_ledger, total
from tasks.generate.serve.stopping import request_stop
from tests.generate.losses import kill_and_restart
from tests.generate.serving import Run, faults, url_of, vocabulary
from tests.servers.account import MICROS
from tests.servers.answers import key_of
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sglang": ("sglang", {}),
    "sglang stream": ("sglang", {"stream": True}),
    "vllm": ("vllm", {}),
    "vllm completions": ("vllm", {"api": "completions"}),
    "openai": ("openai", {}),
    "openai stream": ("openai", {"stream": True}),
    "openrouter": ("openrouter", {}),
    "openrouter stream": ("openrouter", {"stream": True}),
}
NANOS_PER_MICRO = 1000


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabulary(tmp_path_factory.mktemp("words") / "words.json")


@pytest.fixture(scope="module")
def _server(words: Path) -> Iterator[FakeServer]:
    with fake_server(vocabulary=words) as server:
        yield server


def run_on(server: FakeServer, store: Path, engine: str = "openrouter", questions: int = 40, **serving: Any) -> Run:
    return Run(url_of(server, engine), str(store / "store"), engine, questions, serving=serving)


def ledger_of(run: Run) -> Any:
    return read_ledger(Path(run.store) / "ledger" / "test")


def committed(run: Run) -> int:
    """Nano-dollars that are settled or reserved."""
    with Budget(Path(run.store) / "budget" / "test", Caps()) as budget:
        totals = budget.totals()
    return totals.settled_nanousd + totals.reserved_nanousd


def answered(server: FakeServer) -> list[int]:
    """How often each prompt was answered."""
    return [tally["answered"] for tally in server.summary()["keys"].values()]


@pytest.mark.parametrize("name", DIALECTS)
def test_every_prompt_is_answered_once_whatever_goes_wrong(name: str, server: FakeServer, tmp_path: Path) -> None:
    engine, serving = DIALECTS[name]
    server.script(*faults(0.05))
    run = run_on(server, tmp_path, engine, 150, budget={"usd": 2}, **serving)
    run.talks = 10
    result = run.answer()
    rows = run.read(result, "answers")
    assert len({row["prompt_id"] for row in rows}) == len(rows) == 180
    assert result.facts["quarantined"] == {}
    assert answered(server) == [1] * 180
    counted = server.summary()
    entries = ledger_of(run)
    assert len(entries) == counted["requests"] > 180
    assert total(entries).cost_nanousd == counted["billed_micros"] * NANOS_PER_MICRO
    assert counted["billed_micros"] * NANOS_PER_MICRO <= committed(run) <= 2 * 10**9
    assert run.read(result, "ledger") == entries.to_pylist()


def test_the_table_of_datasets_adds_up(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("status", times=2, options={"status": 500}))
    run = run_on(server, tmp_path)
    rows = run.read(run.answer(), "datasets")
    assert [(row["dataset"], row["prompts"], row["answered"]) for row in rows] == [("chat", 20, 20), ("code", 20, 20)]
    assert sum(json.loads(row["errors"]).get("server_error", 0) for row in rows) == 2
    assert sum(row["cost_nanousd"] for row in rows) == server.summary()["billed_micros"] * NANOS_PER_MICRO
    assert all(row["mean_answer_tokens"] > 12 for row in rows)


def test_what_is_paid_for_is_not_asked_again(server: FakeServer, tmp_path: Path) -> None:
    first, second = run_on(server, tmp_path), run_on(server, tmp_path)
    result = first.answer()
    asked = server.summary()["requests"]
    again = second.answer()
    assert server.summary()["requests"] == asked == 40
    assert again.part("answers")[0].sha256 == result.part("answers")[0].sha256


def test_prompts_that_are_the_same_to_the_server_are_asked_once(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path, "openai", 0, api="completions")
    run.twins = 2
    rows = run.read(run.answer(), "answers")
    assert len(rows) == 4
    assert server.summary()["requests"] == 2


def test_nothing_on_disk_is_asked_again_after_three_kills(server: FakeServer, tmp_path: Path) -> None:
    server.script(*faults(0.05))
    run = run_on(server, tmp_path, questions=1500, budget={"usd": 2})
    found = kill_and_restart(run, server, kills=3)
    assert (found.rows, found.prompts, found.quarantined) == (1500, 1500, 0)
    assert found.asked_again == found.not_answered == found.overruns == 0
    assert found.answered_twice <= 3 * run.concurrency
    assert found.spent_usd <= 2
    assert found.reconciliation.explained


def test_answers_of_others_than_asked_for_stop_the_run(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("other_provider", probability=0.5))
    run = run_on(server, tmp_path, provider={"only": ["ProviderA"], "max_unlisted": 3})
    with pytest.raises(EngineError, match=r"provider OtherHost is not allowed.*max_unlisted"):
        run.answer()
    assert 4 <= server.summary()["outcomes"]["other_provider"] < 4 + run.concurrency


def test_a_few_answers_of_others_are_quarantined(server: FakeServer, tmp_path: Path) -> None:
    server.script(
        Fault("other_provider", times=1),
        Fault("other_quantization", times=1, options={"provider": "ProviderA", "quantization": "fp4"}),
        Fault("other_model", times=1),
    )
    rules = {"only": ["ProviderA"], "exclude": [{"provider": "ProviderA", "quantization": "fp4"}]}
    run = run_on(server, tmp_path, provider=rules)
    result = run.answer()
    details = sorted(row["detail"] for row in run.read(result, "quarantine"))
    assert result.facts["quarantined"] == {"answer_not_allowed": 3}
    assert [detail.split()[0] for detail in details] == ["model", "provider", "provider"]
    assert len(run.read(result, "answers")) == 37


def test_a_key_that_is_refused_stops_the_run_and_keeps_what_is_there(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEY", "sk-or-v1-very-secret")
    run = run_on(server, tmp_path, endpoint={"api_key_env": "FAKE_KEY"})
    run.concurrency = 4
    server.script(Fault("status", probability=0.2, options={"status": 401, "message": "sk-or-v1-very-secret is bad"}))
    with pytest.raises(EngineError, match=r"status 401.*prompts are done.*start again to go on") as raised:
        run.answer()
    assert "very-secret" not in str(raised.value)
    before = sum(answered(server))
    server.script()
    again = run_on(server, tmp_path, endpoint={"api_key_env": "FAKE_KEY"})
    assert len(again.read(again.answer(), "answers")) == 40
    assert answered(server) == [1] * 40
    assert before < 40


def test_rows_that_are_refused_are_quarantined_and_the_others_go_on(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("status", times=3, options={"status": 413, "message": "too long"}))
    run = run_on(server, tmp_path)
    result = run.answer()
    rows = run.read(result, "quarantine")
    assert result.facts["quarantined"] == {"request_refused": 3}
    assert all("413" in row["detail"] and "too long" in row["detail"] for row in rows)


@pytest.mark.parametrize(("status", "reason"), [(500, "no_answer"), (413, "request_refused")], ids=["fails", "refuses"])
def test_prompts_without_an_answer_are_asked_again_by_the_next_run_and_no_others(
    status: int, reason: str, server: FakeServer, tmp_path: Path
) -> None:
    lost = key_of({"messages": [{"role": "user", "content": "Question 3?"}]})
    server.script(Fault("status", probability=1, key=lost, options={"status": status}))
    run = run_on(server, tmp_path, retries=1)
    first = run.answer()
    assert first.facts["quarantined"] == {reason: 1}
    assert first.provisional
    server.script()
    server.reset()
    second = run.answer()
    assert {key: tally["requests"] for key, tally in server.summary()["keys"].items()} == {lost: 1}
    assert second.facts["quarantined"] == {}
    assert len(run.read(second, "answers")) == 40
    assert not second.provisional


@pytest.mark.parametrize("shard_prompts", [7, 2000])
def test_one_prompt_more_is_one_request_more(shard_prompts: int, server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path)
    run.talks, run.shard_prompts = 3, shard_prompts
    run.answer()
    server.reset()
    more = run_on(server, tmp_path, questions=41)  # its id lies somewhere among the others'
    more.talks, more.shard_prompts = 3, shard_prompts
    assert len(more.read(more.answer(), "answers")) == 50
    assert server.summary()["requests"] == 1


def test_a_server_that_refuses_everything_stops_the_run(server: FakeServer, tmp_path: Path) -> None:
    server.script(Fault("status", probability=1, options={"status": 404}))
    run = run_on(server, tmp_path, questions=300)
    with pytest.raises(EngineError, match=rf"http://127.0.0.1:{server.port}/api/v1/chat/completions.*404"):
        run.answer()
    assert server.summary()["requests"] <= 20 + run.concurrency


def test_a_server_that_cannot_be_reached_stops_the_run(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path, "sglang", retries=1)
    run.job()
    run.serving |= {"model": "fake-model"}
    run.url = "http://127.0.0.1:9"
    del run.__dict__["spec"]
    with pytest.raises(EngineError, match=r"http://127.0.0.1:9/generate answered none of the last 20"):
        run.answer()


@pytest.mark.parametrize("at_cap", ["finish", "cancel"])
def test_a_cap_stops_the_run_and_a_larger_one_goes_on(at_cap: str, server: FakeServer, tmp_path: Path) -> None:
    cap = 0.004
    run = run_on(server, tmp_path, questions=200, budget={"usd": cap, "at_cap": at_cap})
    with pytest.raises(BudgetExhausted, match=r"the run may spend \$.*prompts are done.*Raise the cap"):
        run.answer()
    spent = server.summary()["billed_micros"] / MICROS
    assert spent <= committed(run) / 1e9 <= cap
    assert spent > cap / 2  # what stands reserved waits to be settled before the cap counts as reached
    done = sum(answered(server))
    again = run_on(server, tmp_path, questions=200, budget={"usd": 1})
    assert len(again.read(again.answer(), "answers")) == 200
    if at_cap == "finish":
        assert answered(server) == [1] * 200
        assert 0 < done < 200


def test_the_cap_of_a_dataset_leaves_the_others_alone(server: FakeServer, tmp_path: Path) -> None:
    run = run_on(server, tmp_path, budget={"dataset_tokens": {"chat": 500}})
    with pytest.raises(BudgetExhausted, match=r"dataset chat may spend 500 tokens"):
        run.answer()
    spent = ledger_of(run).to_pandas().groupby("dataset").agg({"key": "size", "completion_tokens": "sum"})
    assert spent.loc["code", "key"] == 20
    assert 0 < spent.loc["chat", "key"] < 20
    assert spent.loc["chat", "completion_tokens"] <= 500


def test_a_run_that_is_told_to_stop_takes_what_is_on_its_way(words: Path, tmp_path: Path) -> None:
    with fake_server(vocabulary=words, latency=0.2) as server:
        run = run_on(server, tmp_path, questions=400)
        stopper = threading.Timer(0, _stop_when_asking, [server])
        stopper.start()
        with pytest.raises(RunStopped, match=r"of 400 prompts are done.*start again to go on"):
            run.answer()
        stopper.join()
        done = sum(answered(server))
        assert server.summary()["outcomes"] == {"answered": done}
        assert 0 < done < 400
        again = run_on(server, tmp_path, questions=400)
        assert len(again.read(again.answer(), "answers")) == 400
        assert answered(server) == [1] * 400


def test_answers_that_take_too_long_are_given_up_when_the_run_stops(words: Path, tmp_path: Path) -> None:
    with fake_server(vocabulary=words, latency=30) as server:
        run = run_on(server, tmp_path, grace_seconds=0.1, idle_seconds=60)
        stopper = threading.Timer(0, _stop_when_asking, [server])
        stopper.start()
        began = time.monotonic()
        with pytest.raises(RunStopped, match="attempts may cost up to"):
            run.answer()
        stopper.join()
        assert time.monotonic() - began < 20
        assert set(ledger_of(run)["outcome"].to_pylist()) == {"cancelled"}


def _stop_when_asking(server: FakeServer) -> None:
    while not server.summary()["requests"]:
        time.sleep(0.05)
    assert request_stop()
    assert not request_stop()
