"""`refresh_dataset`: a corpus that grows costs what is new in it, and a draft begins with the same artifacts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import command_line
from flows.command_line import main_refresh
from flows.refresh_dataset import refresh_dataset
from schemas.recipe import Recipe, load_recipe
from tests.e2e.runs import committed
from tests.flows.recipes import write_recipe
from tests.generate.serving import vocabulary
from tests.servers.fake import FakeServer, fake_server


@pytest.fixture(scope="module")
def _server(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    words = vocabulary(tmp_path_factory.mktemp("words") / "words.json", tiny_target)
    with fake_server(vocabulary=words) as server:
        yield server


@pytest.fixture
def server(_server: FakeServer) -> FakeServer:
    _server.reset()
    return _server


def write(folder: Path, target: Path, server: FakeServer) -> Path:
    limits = {"concurrency": 4, "max_tokens": 64}
    serving = {"endpoints": [{"url": server.openrouter}], "model": "fake-model", "short": limits, "long": limits}
    serving |= {"budget": {"approve_usd": 1, "pilot_prompts": 2}}
    generation = {"engine": "openrouter", "serving": serving}
    corpus = {"heldout": 2, "max_length": 512}
    return write_recipe(folder, target, generation=generation, corpus=corpus, audit={"max_quarantined_share": 1})


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_of_prompts_that_were_added_only_the_new_ones_are_paid_for(
    server: FakeServer, store: Path, tiny_target: Path, tmp_path: Path
) -> None:
    path = write(tmp_path, tiny_target, server)
    refresh_dataset(load_recipe(path))
    assert server.summary()["requests"] == 6
    with open(tmp_path / "train.jsonl", "a") as handle:
        for number, text in enumerate(("What is a kite?", "Who made the first clock?")):
            handle.write(json.dumps({"id": f"n{number}", "messages": [{"role": "user", "content": text}]}) + "\n")
    refresh_dataset(load_recipe(path))
    assert server.summary()["requests"] == 8
    assert {tally["answered"] for tally in server.summary()["keys"].values()} == {1}
    tasks = [record.task for record in committed(store).values()]
    assert tasks.count("build_corpus") == tasks.count("generate_served") == 2
    assert not {"train_draft", "extract_states", "measure_acceptance"} & set(tasks)


def test_the_command_runs_the_recipe(tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Recipe] = []
    monkeypatch.setattr(command_line, "run_refresh", ran.append)
    main_refresh([str(write_recipe(tmp_path, tiny_target))])
    assert [recipe.name for recipe in ran] == ["tiny"]


def test_a_status_that_is_not_there_is_a_short_error_and_runs_nothing(
    server: FakeServer,
    store: Path,
    tiny_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command_line, "run_refresh", _never)
    with pytest.raises(SystemExit) as stopped:
        main_refresh(["--status", str(write(tmp_path, tiny_target, server))])
    assert stopped.value.code == 1
    assert "no server has been asked for tiny yet" in capsys.readouterr().err


def test_a_price_that_the_recipe_gives_makes_a_server_cost_money(tiny_target: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_target, corpus={"heldout": 2, "max_length": 512})
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    assert not Recipe.model_validate(content).generation.is_metered
    serving: dict[str, Any] = {"endpoints": [{"url": "http://127.0.0.1:9"}]}
    content["generation"] = {"engine": "vllm", "serving": serving}
    assert not Recipe.model_validate(content).generation.is_metered
    serving["price"] = {"completion_usd_per_million": 0.5}
    assert Recipe.model_validate(content).generation.is_metered


def _never(_recipe: Recipe) -> None:
    raise AssertionError("the flow was started")
