"""Nothing but a pilot is spent before a person, or the recipe, allows it; what was decided is asked once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.refresh_dataset import refresh_dataset
from schemas.errors import BudgetExhausted, EngineError, NotApproved
from schemas.recipe import Recipe, load_recipe
from tasks.generate.ledger import read_ledger, total
from tests.e2e.runs import committed
from tests.flows.recipes import write_recipe
from tests.generate.serving import url_of, vocabulary
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server", "store")]

PROMPTS, PILOT = 6, 2
Terminal = Callable[..., list[str]]


@pytest.fixture(scope="module")
def _server(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    words = vocabulary(tmp_path_factory.mktemp("words") / "words.json", tiny_target)
    with fake_server(vocabulary=words) as server:
        yield server


@pytest.fixture
def server(_server: FakeServer) -> FakeServer:
    _server.script()
    _server.reset()
    return _server


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in which a person gives these answers; returns what was asked."""

    class Stdin:
        def isatty(self) -> bool:
            return True

    def answering(*answers: str | Callable[[], str]) -> list[str]:
        asked: list[str] = []
        waiting = list(answers)

        def say(question: str) -> str:
            asked.append(question)
            answer = waiting.pop(0)
            return answer if isinstance(answer, str) else answer()

        monkeypatch.setattr(sys, "stdin", Stdin())
        monkeypatch.setattr("builtins.input", say)
        return asked

    return answering


def recipe_of(folder: Path, target: Path, server: FakeServer, engine: str = "openrouter", **budget: Any) -> Recipe:
    limits = {"concurrency": 2, "max_tokens": 64}
    serving = {
        "endpoints": [{"url": url_of(server, engine)}],
        "model": "fake-model",
        "short": limits,
        "long": limits,
        "budget": {"pilot_prompts": PILOT, **budget},
        "retries": 1,
        "backoff_seconds": 0.01,
    }
    generation = {"engine": engine, "serving": serving}
    path = write_recipe(
        folder,
        target,
        generation=generation,
        corpus={"heldout": 2, "max_length": 512},
        audit={"max_quarantined_share": 1},
    )
    return load_recipe(path)


def spent(store: Path) -> int:
    return total(read_ledger(store / "ledger" / "tiny")).cost_nanousd


def made(store: Path) -> set[str]:
    return {record.task for record in committed(store).values()}


def test_without_a_terminal_and_without_approval_the_run_stops_after_its_pilot(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, tiny_target, server)
    for _ in range(2):
        with pytest.raises(NotApproved, match=r"would cost about \$0\.00.*nobody can be asked.*approve_usd"):
            refresh_dataset(recipe)
    assert server.summary()["requests"] == PILOT
    assert "generate_served" not in made(store)


def test_what_the_recipe_allows_is_asked_of_nobody(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_of(tmp_path, tiny_target, server, approve_usd=1)
    refresh_dataset(recipe)
    refresh_dataset(recipe)
    assert server.summary()["requests"] == PROMPTS
    assert {"generate_served", "build_corpus"} <= made(store)
    assert "record_decision" not in made(store)
    said = capsys.readouterr().out
    assert "Forecast of tiny: what is still to be asked" in said
    assert "results were cached; nothing was computed" in said


def test_a_person_is_asked_once_and_the_approval_outlives_a_failure(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path, terminal: Terminal
) -> None:
    def approve() -> str:
        assert server.summary()["requests"] == PILOT
        server.script(Fault("status", probability=1, options={"status": 401}))
        return "y"

    asked = terminal(approve)
    recipe = recipe_of(tmp_path, tiny_target, server)
    with pytest.raises(EngineError, match="refuse the run"):
        refresh_dataset(recipe)
    server.script()
    refresh_dataset(recipe)
    (question,) = asked
    assert question.startswith("Continue inference: approve $0.00")
    assert " for words? y for a cap of $0.01" in question
    assert "build_corpus" in made(store)
    assert {tally["answered"] for tally in server.summary()["keys"].values()} == {1}


def test_a_refusal_stops_and_a_new_run_asks_anew(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path, terminal: Terminal
) -> None:
    recipe = recipe_of(tmp_path, tiny_target, server)
    asked = terminal("", "maybe", "yes")
    for _ in range(2):
        with pytest.raises(NotApproved, match="were not approved"):
            refresh_dataset(recipe)
    assert server.summary()["requests"] == PILOT
    refresh_dataset(recipe)
    assert len(asked) == 3
    assert server.summary()["requests"] == PROMPTS


def test_the_approved_cap_holds_and_more_is_asked_for_when_it_is_used_up(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path, terminal: Terminal
) -> None:
    recipe = recipe_of(tmp_path, tiny_target, server)
    before: list[int] = []

    def little() -> str:
        before.append(spent(store))
        return "$0.0003"

    asked = terminal(little, "y")
    with pytest.raises(BudgetExhausted, match="approve more"):
        refresh_dataset(recipe)
    assert before[0] < spent(store) <= before[0] + 300_000
    assert PILOT < server.summary()["requests"] < PROMPTS
    refresh_dataset(recipe)
    assert len(asked) == 2
    assert server.summary()["requests"] == PROMPTS


def test_more_than_the_recipe_allows_is_asked_for(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path, terminal: Terminal
) -> None:
    asked = terminal("y")
    refresh_dataset(recipe_of(tmp_path, tiny_target, server, approve_usd=0.0001))
    assert len(asked) == 1
    assert server.summary()["requests"] == PROMPTS


def test_an_allowance_that_was_used_up_is_not_given_twice(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path, terminal: Terminal
) -> None:
    with pytest.raises(NotApproved):
        refresh_dataset(recipe_of(tmp_path, tiny_target, server))
    # no more than what all will cost, so that there is no room for the worst case of the last request
    allowed = spent(store) / PILOT * PROMPTS * 1.05 / 1e9
    recipe = recipe_of(tmp_path, tiny_target, server, approve_usd=allowed)
    asked = terminal("y")
    with pytest.raises(BudgetExhausted):
        refresh_dataset(recipe)
    assert spent(store) <= allowed * 1e9
    refresh_dataset(recipe)
    assert len(asked) == 1
    assert server.summary()["requests"] == PROMPTS


def test_free_servers_are_asked_without_a_pilot(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path
) -> None:
    refresh_dataset(recipe_of(tmp_path, tiny_target, server, engine="openai"))
    assert server.summary()["requests"] == PROMPTS
    assert not made(store) & {"forecast_served", "record_decision"}


def test_what_is_paid_for_needs_no_approval(server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path) -> None:
    refresh_dataset(recipe_of(tmp_path, tiny_target, server, approve_usd=1))
    for path in [*(store / "index").glob("*_served/*.json")]:  # as if the results had been pruned
        path.unlink()
    refresh_dataset(recipe_of(tmp_path, tiny_target, server))
    assert server.summary()["requests"] == PROMPTS
