"""A failed run is retried as the Prefect UI does it: what was done is cached, the failed step and the rest are run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.prefect_api import Api
from tests.e2e.runs import ROOT, Server, committed, run_environment

SERVE = """
import sys
from pathlib import Path
from flows.build_draft import build_draft
from schemas.recipe import load_recipe
recipe = load_recipe(Path(sys.argv[1])).model_dump(mode="json")
build_draft.serve("tiny", parameters={"recipe": recipe})
"""


@contextmanager
def served(recipe: Path, store: Path, server: Server, log: Path) -> Iterator[None]:
    """A process that serves `build_draft` with the tiny recipe as its default."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(recipe)],
            cwd=ROOT,
            env=run_environment(store, server),
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.slow
def test_retry_from_the_api_goes_on_at_the_failed_step(
    tiny_recipe: Path, finished_store: Path, server: Server, tmp_path: Path
) -> None:
    train_key = min(key for key in committed(finished_store) if key.startswith("train_draft/"))
    store, api = tmp_path / "store", Api(server)
    obstacle = (store / "data" / train_key).with_suffix(".part")
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("a file where training wants its folder")
    with served(tiny_recipe, store, server, tmp_path / "log"):
        run = api.start("build_draft/tiny")
        failed = api.wait(run, "FAILED")
        assert obstacle.name in failed["message"]
        before = committed(store)
        obstacle.unlink()
        api.retry(run)
        api.wait(run, "COMPLETED")
    after = committed(store)
    assert {key: record.digest for key, record in after.items()} == {
        key: record.digest for key, record in committed(finished_store).items()
    }
    again = {key.split("/")[0] for key in after if after[key] != before.get(key)}
    assert again == {"train_draft", "export_draft", "measure_acceptance", "simulate_acceptance"}
