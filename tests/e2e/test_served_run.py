"""The whole flow with answers of a server that goes wrong, and a run that is stopped while it asks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.runs import Runs, Server, committed
from tests.generate.serving import faults, vocabulary
from tests.servers.answers import key_of
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def words(ending_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabulary(tmp_path_factory.mktemp("words") / "words.json", ending_target)


@pytest.fixture
def fake(words: Path) -> Iterator[FakeServer]:
    with fake_server(vocabulary=words) as server:
        yield server


def recipe_for(tiny_recipe: Path, folder: Path, fake: FakeServer, **serving: Any) -> Path:
    """The tiny recipe with answers of a server."""
    content = yaml.safe_load(tiny_recipe.read_text())
    limits = {"concurrency": 4, "max_tokens": 64}
    content["generation"] = {
        "engine": "openai",
        "shard_prompts": 8,
        "serving": {
            "endpoints": [{"url": fake.url}],
            "short": limits,
            "long": limits,
            "backoff_seconds": 0.01,
            "idle_seconds": 5,
            **serving,
        },
    }
    content["corpus"]["max_length"] = 512
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_draft_is_built_from_the_answers_of_a_server(
    tiny_recipe: Path, fake: FakeServer, server: Server, tmp_path: Path
) -> None:
    fake.script(*faults(0.1))
    recipe = recipe_for(tiny_recipe, tmp_path, fake)
    with Runs(tmp_path / "store", server, tmp_path / "log") as runs:
        assert runs.run(recipe) == 0, runs.said()
        assert {tally["answered"] for tally in fake.summary()["keys"].values()} == {1}
        asked = fake.summary()["requests"]
        assert runs.run(recipe) == 0, runs.said()
        assert "results were cached; nothing was computed" in runs.said()
    assert fake.summary()["requests"] == asked
    tasks = [record.task for record in committed(tmp_path / "store").values()]
    assert [tasks.count(name) for name in ("generate_served", "reconstruct_sequences", "generate_answers")] == [1, 1, 0]


def test_a_prompt_that_got_no_answer_is_asked_by_the_next_run_alone(
    tiny_recipe: Path, fake: FakeServer, server: Server, tmp_path: Path
) -> None:
    lost = key_of({"messages": [{"role": "user", "content": "Tell me about a clock and a river."}]})
    fake.script(Fault("status", probability=1, key=lost, options={"status": 500}))
    recipe = recipe_for(tiny_recipe, tmp_path, fake, retries=1)
    with Runs(tmp_path / "store", server, tmp_path / "log") as runs:
        assert runs.run(recipe) == 0, runs.said()
        assert "1 prompts have no answer; the next run asks for these again" in runs.log.read_text()
        fake.script()
        fake.reset()
        assert runs.run(recipe) == 0, runs.said()
        assert {key: tally["answered"] for key, tally in fake.summary()["keys"].items()} == {lost: 1}
        assert runs.run(recipe) == 0, runs.said()
        assert "results were cached; nothing was computed" in runs.said()
    assert fake.summary()["requests"] == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_run_that_is_stopped_while_it_asks_keeps_what_was_on_its_way(
    number: signal.Signals, code: int, tiny_recipe: Path, words: Path, server: Server, tmp_path: Path
) -> None:
    with fake_server(vocabulary=words, latency=0.5) as fake, Runs(tmp_path / "store", server, tmp_path / "log") as runs:
        recipe = recipe_for(tiny_recipe, tmp_path, fake)
        process = runs.start(recipe)
        while not fake.summary()["answered"]:
            time.sleep(0.05)
        os.kill(process, number)
        assert runs.wait() == code, runs.said()
        said = runs.log.read_text()
        assert "no new request is sent" in said
        assert "are left" in said
        assert "start again to go on" in said
        assert set(fake.summary()["outcomes"]) == {"answered"}
        assert runs.run(recipe) == 0, runs.said()
        assert {tally["answered"] for tally in fake.summary()["keys"].values()} == {1}
