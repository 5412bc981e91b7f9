"""What the next run does again after a failure, a lost shard, or a changed recipe, and that it is nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from schemas.recipe import load_recipe
from tests.e2e.runs import Runs, Server, committed

pytestmark = pytest.mark.slow


@pytest.fixture
def moved_store(finished_store: Path, tmp_path: Path) -> Path:
    """A copy of the finished store at another place."""
    return Path(shutil.copytree(finished_store, tmp_path / "store"))


def remade(before: Path, after: Path) -> set[str]:
    """Keys whose artifact was made anew, or for the first time, in `after`."""
    old, new = committed(before), committed(after)
    return {key for key, record in new.items() if key not in old or old[key].task_run != record.task_run}


def shard_of(store: Path, task: str) -> tuple[str, Path]:
    """The key and a data file of the first artifact of a task."""
    key = min(key for key in committed(store) if key.startswith(f"{task}/"))
    return key, min((store / "data" / key.removesuffix(".parquet")).glob("*.parquet"))


def test_a_moved_store_is_cached_whole(
    tiny_recipe: Path, finished_store: Path, moved_store: Path, server: Server, tmp_path: Path
) -> None:
    with Runs(moved_store, server, tmp_path / "log") as runs:
        assert runs.run(tiny_recipe) == 0, runs.said()
        assert "results were cached; nothing was computed" in runs.said()
    assert remade(finished_store, moved_store) == set()


def test_another_learning_rate_redoes_training_and_what_follows(
    tiny_recipe: Path, finished_store: Path, moved_store: Path, server: Server, tmp_path: Path
) -> None:
    content = yaml.safe_load(tiny_recipe.read_text())
    content["training"]["learning_rate"] = 5e-4
    changed = tmp_path / "changed.yaml"
    changed.write_text(yaml.safe_dump(content))
    with Runs(moved_store, server, tmp_path / "log") as runs:
        assert runs.run(changed) == 0, runs.said()
    tasks = [key.split("/")[0] for key in remade(finished_store, moved_store)]
    assert sorted(tasks) == [
        "export_draft",
        "measure_acceptance",
        "measure_acceptance",
        "simulate_acceptance",
        "train_draft",
    ]


@pytest.mark.parametrize("harm", ["delete", "flip a bit"])
def test_a_lost_or_altered_shard_is_made_again_alone(
    harm: str, tiny_recipe: Path, finished_store: Path, moved_store: Path, server: Server, tmp_path: Path
) -> None:
    key, shard = shard_of(moved_store, "extract_states")
    whole = shard.read_bytes()
    if harm == "delete":
        shard.unlink()
    else:
        shard.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    with Runs(moved_store, server, tmp_path / "log") as runs:
        assert runs.run(tiny_recipe) == 0, runs.said()
    assert remade(finished_store, moved_store) == {key}
    assert shard.read_bytes() == whole


def test_after_a_failed_step_the_next_run_does_that_step_and_what_follows(
    tiny_recipe: Path, finished_store: Path, server: Server, tmp_path: Path
) -> None:
    train_key, _ = shard_of(finished_store, "train_draft")
    store = tmp_path / "store"
    obstacle = (store / "data" / train_key).with_suffix(".part")
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("a file where training wants its folder")
    with Runs(store, server, tmp_path / "log") as runs:
        assert runs.run(tiny_recipe) == 1
        failed = committed(store)
        assert train_key not in failed
        obstacle.unlink()
        assert runs.run(tiny_recipe) == 0, runs.said()
    finished = committed(store)
    assert {key: record.digest for key, record in finished.items()} == {
        key: record.digest for key, record in committed(finished_store).items()
    }
    again = {key.split("/")[0] for key in finished if finished[key] != failed.get(key)}
    beside = {"measure_lost_mass"}  # does not wait for training, and is done or not when that fails
    assert again - beside == {"train_draft", "export_draft", "measure_acceptance", "simulate_acceptance"}


def test_an_interrupt_stops_at_once_and_the_next_run_goes_on(
    tiny_recipe: Path, finished_store: Path, server: Server, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with Runs(store, server, tmp_path / "log") as runs:
        child = runs.start(tiny_recipe)
        wait_for_text(runs.log, "journaled batch")
        os.kill(child, signal.SIGINT)
        assert runs.wait() == 128 + signal.SIGINT, runs.said()
        assert "the same command goes on from there" in runs.said()
        assert len(committed(store)) < len(committed(finished_store))
        assert runs.run(tiny_recipe) == 0, runs.said()
    assert {key: record.digest for key, record in committed(store).items()} == {
        key: record.digest for key, record in committed(finished_store).items()
    }


def wait_for_text(path: Path, text: str) -> None:
    """Wait until a log has this text."""
    deadline = time.monotonic() + 120
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)


def test_every_result_is_parquet(finished_store: Path) -> None:
    results = [path for path in (finished_store / "results").rglob("*") if path.is_file()]
    assert len(results) > 20
    assert all(path.read_bytes()[:4] == b"PAR1" for path in results)
    kinds = {path.suffix for path in (finished_store / "data").rglob("*") if path.is_file()}
    assert kinds == {".parquet", ".json", ".safetensors"}


def test_report_and_lineage_name_the_same_recipe(tiny_recipe: Path, finished_store: Path) -> None:
    fingerprint = load_recipe(tiny_recipe).fingerprint()
    assert fingerprint in (finished_store / "reports" / "tiny" / "report.md").read_text()
    heads = [
        json.loads(pq.read_schema(finished_store / "results" / key).metadata[b"eyas"])
        for key in committed(finished_store)
    ]
    assert {head["lineage"]["recipe"] for head in heads} == {fingerprint}
