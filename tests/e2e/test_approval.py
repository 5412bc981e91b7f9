"""A run that a worker or `serve` started waits for its form, takes only what fits it, and asks once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.prefect_api import Api
from tests.e2e.runs import ROOT, Server, committed, run_environment
from tests.generate.serving import vocabulary
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

pytestmark = pytest.mark.slow

SERVE = """
import sys
from pathlib import Path
from flows.refresh_dataset import refresh_dataset
from schemas.recipe import load_recipe
recipe = load_recipe(Path(sys.argv[1])).model_dump(mode="json")
refresh_dataset.serve("served", parameters={"recipe": recipe})
"""
DEPLOY = """
import sys
from pathlib import Path
from flows.refresh_dataset import refresh_dataset
from schemas.recipe import load_recipe
recipe = load_recipe(Path(sys.argv[1])).model_dump(mode="json")
flow = refresh_dataset.from_source(sys.argv[2], "flows/refresh_dataset.py:refresh_dataset")
flow.deploy("worked", work_pool_name="here", parameters={"recipe": recipe}, print_next_steps=False)
"""
PILOT, PROMPTS = 8, 46  # two datasets of 22 and 8 conversations, these of three turns


@pytest.fixture(scope="module")
def words(ending_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabulary(tmp_path_factory.mktemp("words") / "words.json", ending_target)


@pytest.fixture
def fake(words: Path) -> Iterator[FakeServer]:
    with fake_server(vocabulary=words) as server:
        yield server


@pytest.fixture
def recipe(tiny_recipe: Path, fake: FakeServer, tmp_path: Path) -> Path:
    content = yaml.safe_load(tiny_recipe.read_text())
    limits = {"concurrency": 8, "max_tokens": 64}
    serving = {"endpoints": [{"url": fake.openrouter}], "model": "fake-model", "short": limits, "long": limits}
    serving |= {"budget": {"pilot_prompts": 4}, "retries": 1, "backoff_seconds": 0.01}
    content["generation"] = {"engine": "openrouter", "serving": serving}
    content["corpus"]["max_length"] = 512
    path = tmp_path / "gated.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def process(command: list[str], store: Path, server: Server, log: Path) -> Iterator[None]:
    """A process that runs flows while the block does."""
    # a worker imports Prefect before anything of ours, and hands its settings on
    settings = {"PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(store / "results"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    environment = run_environment(store, server) | settings
    with open(log, "wb") as output:
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        running.terminate()
        running.wait(timeout=60)


@contextmanager
def served(recipe: Path, store: Path, server: Server, log: Path) -> Iterator[None]:
    with process([sys.executable, "-c", SERVE, str(recipe)], store, server, log):
        yield


@contextmanager
def worked(recipe: Path, store: Path, server: Server, log: Path) -> Iterator[None]:
    prefect, environment = [sys.executable, "-m", "prefect"], run_environment(store, server)
    subprocess.run([*prefect, "work-pool", "create", "here", "--type", "process"], env=environment, check=True)
    subprocess.run([sys.executable, "-c", DEPLOY, str(recipe), str(ROOT)], env=environment, cwd=ROOT, check=True)
    with process([*prefect, "worker", "start", "--pool", "here", "--type", "process"], store, server, log):
        yield


def test_a_suspended_run_takes_a_form_that_fits_and_goes_on_in_a_new_process(
    recipe: Path, fake: FakeServer, server: Server, tmp_path: Path
) -> None:
    store, api = tmp_path / "store", Api(server)
    with worked(recipe, store, server, tmp_path / "log"):
        run = api.start("refresh_dataset/worked")
        assert api.wait(run, "PAUSED")["name"] == "Suspended"
        schema, description = api.form(run)
        assert description.startswith("**Continue inference: approve $0.00")
        assert "for talks, words?**" in description
        cap = schema["properties"]["cap_usd"]
        assert (cap["minimum"], cap["title"], cap["default"]) == (0.01, "Cap in USD", 0.01)
        for wrong in ({"decision": "maybe"}, {"decision": "approve", "cap_usd": -5}, {"decision": "approve", "cup": 1}):
            assert api.resume(run, wrong) == "REJECT"
        assert api.wait(run, "PAUSED")["name"] == "Suspended"
        assert PILOT <= fake.summary()["requests"] < PROMPTS
        assert api.resume(run, {"decision": "approve", "cap_usd": 0.5}) == "ACCEPT"
        api.wait(run, "COMPLETED")
        assert fake.summary()["requests"] == PROMPTS
        api.wait(api.start("refresh_dataset/worked"), "COMPLETED")
    assert fake.summary()["requests"] == PROMPTS
    assert {"forecast_served", "record_decision", "generate_served", "build_corpus"} <= {
        record.task for record in committed(store).values()
    }
    table = api.tables("tiny-forecast")[0]
    assert [row["dataset"] for row in table] == ["talks", "words", "all"]


def test_a_paused_run_that_fails_after_its_approval_is_retried_without_a_second_question(
    recipe: Path, fake: FakeServer, server: Server, tmp_path: Path
) -> None:
    store, api = tmp_path / "store", Api(server)
    with served(recipe, store, server, tmp_path / "log"):
        refused = api.start("refresh_dataset/served")
        assert api.wait(refused, "PAUSED")["name"] == "Paused"
        api.form(refused)
        assert api.resume(refused, {"decision": "stop"}) == "ACCEPT"
        assert "were not approved" in api.wait(refused, "FAILED")["message"]
        asked = fake.summary()["requests"]
        run = api.start("refresh_dataset/served")
        api.wait(run, "PAUSED")
        api.form(run)
        fake.script(Fault("status", probability=1, options={"status": 401}))
        assert api.resume(run, {"decision": "approve", "cap_usd": 0.5}) == "ACCEPT"
        assert "refuse the run" in api.wait(run, "FAILED")["message"]
        fake.script()
        api.retry(run)
        api.wait(run, "COMPLETED")
    assert asked < PROMPTS
    assert {tally["answered"] for tally in fake.summary()["keys"].values()} == {1}
