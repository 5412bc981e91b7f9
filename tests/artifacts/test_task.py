"""Artifact tasks on a real Prefect server: what is stored is found again, what is damaged is made again, alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

from schemas.errors import ArtifactInvalid
from tasks.artifacts import index
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.index import ArtifactIndex, load_verified
from tasks.artifacts.serializer import ParquetSerializer
from tasks.artifacts.task import artifact_task, peek, workspace
from tests.artifacts import pipeline
from tests.artifacts.pipeline import ALL, NUMBERS, add, broken, count, incomplete, only, ran, run, square

pytestmark = pytest.mark.usefixtures("prefect_server", "store")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def shard_of(store: Path, step: str) -> Path:
    """The first shard of the first artifact of a step that squared or counted the numbers 0 and 1."""
    return min((store / "data" / step).glob("*/*.parquet"), key=lambda path: pq.read_table(path)["value"][0].as_py())


def test_a_second_run_runs_nothing(store: Path) -> None:
    assert run() == ALL
    assert run() == []
    assert run(threads=5) == [], "an excluded parameter does not count"


def test_a_changed_parameter_makes_again_what_depends_on_it(store: Path) -> None:
    assert run() == ALL
    assert run(shard_rows=3) == ["count", "square numbers-00000", "square numbers-00001", "add"]
    assert run() == []


def test_results_are_plain_parquet_and_nothing_is_pickled(store: Path) -> None:
    broken.add("add")
    with pytest.raises(RuntimeError):
        run()
    broken.clear()
    run()
    results = [path for path in (store / "results").rglob("*") if path.is_file()]
    assert len(results) >= 5
    assert all(path.read_bytes().startswith(b"PAR1") for path in results)
    for path in store.rglob("*"):
        if path.is_file():
            assert not path.read_bytes().startswith(b"\x80"), f"{path} looks like a pickle"
            assert b"pickle" not in path.read_bytes()
    assert {path.name for path in store.iterdir()} <= {"store.json", "results", "index", "data", "locks"}


def test_a_result_says_where_it_came_from(filled: Path) -> None:
    numbers = peek(count, upto=6, shard_rows=2)
    assert numbers
    inputs = numbers.lineage["inputs"]
    assert inputs == {"upto": 6, "shard_rows": 2}
    assert numbers.lineage["key"].startswith("count/")
    assert {"task_version", "eyas", "made_at", "host", "seconds", "recipe"} <= numbers.lineage.keys()
    squares = peek(square, numbers=numbers.split("numbers")[0])
    assert squares
    assert squares.lineage["inputs"] == {
        "numbers": {"$artifact": "shards", "digest": numbers.split("numbers")[0].digest()}
    }


def test_the_bodies_see_the_same_artifact_as_later_runs(filled: Path) -> None:
    numbers = peek(count, upto=6, shard_rows=2)
    assert numbers
    key = numbers.lineage["key"]
    _, again = load_verified(key, "sha256")
    head = json.loads(pq.read_schema(filled / "results" / key).metadata[b"eyas"])
    assert numbers.digest() == again.digest() == head["digest"]


def test_a_provisional_result_is_made_again_and_what_follows_only_if_it_differs(store: Path) -> None:
    incomplete.add("count")
    assert run() == ALL
    assert peek(count, upto=6, shard_rows=2) is None
    assert run() == ["count"]
    incomplete.clear()
    assert run() == ["count"]
    assert run() == []
    assert peek(count, upto=6, shard_rows=2)


@pytest.mark.parametrize("harm", [Path.unlink, truncate, flip_a_bit])
def test_a_damaged_shard_is_made_again_alone(filled: Path, harm: Callable[[Path], None]) -> None:
    before = shard_of(filled, "square").read_bytes()
    harm(shard_of(filled, "square"))
    assert run() == ["square numbers-00000"]
    assert shard_of(filled, "square").read_bytes() == before
    assert run() == []


@pytest.mark.parametrize("harm", [Path.unlink, truncate, flip_a_bit])
def test_a_damaged_result_is_made_again_alone(filled: Path, harm: Callable[[Path], None]) -> None:
    harm(only(filled / "results", "count/*.parquet"))
    assert run() == ["count"]
    assert run() == []


@pytest.mark.parametrize("harm", [Path.unlink, truncate, lambda path: path.write_text("[]")])
def test_a_damaged_record_is_made_again_alone(filled: Path, harm: Callable[[Path], None]) -> None:
    harm(only(filled / "index", "add/*.json"))
    assert run() == ["add"]
    assert run() == []


def test_a_forged_record_that_names_pickle_is_refused(filled: Path, tmp_path: Path) -> None:
    record = only(filled / "index", "add/*.json")
    trap = tmp_path / "executed"
    payload = f"cposix\nsystem\n(S'touch {trap}'\ntR.".encode()
    forged = json.loads(record.read_text()) | {"serializer": {"type": "pickle", "picklelib": "pickle"}}
    forged["artifact"] |= {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    record.write_text(json.dumps(forged))
    only(filled / "results", "add/*.parquet").write_bytes(payload)
    with pytest.raises(ArtifactInvalid, match="only Parquet is read"):
        ArtifactIndex().read_path(f"add/{record.stem}")
    assert run() == ["add"]
    assert not trap.exists()
    assert json.loads(record.read_text())["serializer"] == {"type": "eyas-parquet"}


def test_a_moved_store_is_still_whole(filled: Path, tmp_path: Path) -> None:
    moved = filled.rename(tmp_path / "moved")
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: moved / "results"}):
        assert run() == []
    assert not (filled / "results").exists()


def test_a_store_behind_a_link_is_the_same_store(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "link" / "results"}):
        assert run() == ALL
    assert run() == []


@pytest.mark.parametrize("task", ALL)
def test_after_a_failure_only_the_rest_runs(store: Path, task: str) -> None:
    broken.add(task.split()[0] if task in ("count", "add") else task)
    with pytest.raises(RuntimeError, match="is broken"):
        run()
    finished = [name for name in ran if name not in broken]
    broken.clear()
    assert run() == [name for name in ALL if name not in finished]
    assert run() == []


@artifact_task(version="1")
def wrong(kind: str) -> Any:
    """Return something that is no artifact."""
    ran.append("wrong")
    return {"dict": {"a": 1}, "none": None, "table": NUMBERS.table([])}[kind]


@pytest.mark.parametrize("kind", ["dict", "none", "table"])
def test_a_task_that_returns_no_artifact_fails(store: Path, kind: str) -> None:
    state = _state_of(wrong, kind)
    assert state.is_failed()
    assert "not an artifact" in state.message


@artifact_task(version="1")
def broken_rows(value: int) -> Rows:
    """Return rows that break their contract."""
    ran.append("broken_rows")
    return Rows(contract=NUMBERS.name, table=pa.table({"value": [-value]}, schema=NUMBERS.arrow))


def test_a_task_whose_rows_break_their_contract_fails(store: Path) -> None:
    state = _state_of(broken_rows, 3)
    assert state.is_failed()
    assert "test_numbers" in state.message


@artifact_task(version="1")
def anything(value: Any) -> Rows:
    """Take any input."""
    ran.append("anything")
    return Rows(contract=NUMBERS.name, table=NUMBERS.table([{"value": 1}]))


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, b"bytes"])
def test_an_input_without_content_identity_fails_the_task_before_it_runs(store: Path, value: Any) -> None:
    state = _state_of(anything, value)
    assert state.is_failed()
    assert "no cache key" in state.message
    assert ran == []


def test_a_task_whose_result_cannot_be_stored_is_not_completed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(index, "write_bytes", no_space)
        state = _state_of(count, 6, 2)
        assert state.is_failed()
        assert "No space left" in state.message
    assert peek(count, upto=6, shard_rows=2) is None
    assert run() == ALL[1:], "what was published before the failure is taken over, not made again"


def test_options_of_a_task_run_do_not_change_its_identity(filled: Path) -> None:
    ran.clear()
    state = _state_of(count.with_options(task_run_name="another name"), 6, 2)
    assert (state.name, ran) == ("Cached", [])


def test_peek_finds_results_and_runs_nothing(store: Path) -> None:
    assert peek(count, upto=6, shard_rows=2) is None
    run()
    ran.clear()
    numbers = peek(count, upto=6, shard_rows=2)
    assert isinstance(numbers, Shards)
    assert peek(square, numbers=numbers.split("numbers")[1]) is not None, "defaults need not be given"
    shard_of(store, "count").unlink()
    assert peek(count, upto=6, shard_rows=2) is None
    assert ran == []


@artifact_task(version="1")
def two_steps(text: str) -> Shards:
    """Write one file, fail the first time, then write the other."""
    folder = workspace()
    first = folder.path("first.json")
    if first.exists():
        ran.append("found the first")
    else:
        ran.append("made the first")
        first.write_text("{}")
        folder.path("scratch").write_text(text)
        raise RuntimeError("killed")
    folder.add_file("config", first.name)
    folder.add_table("numbers", "second.parquet", NUMBERS.table([{"value": 2}]), NUMBERS)
    return folder.publish()


def test_what_a_failed_attempt_left_is_used_and_cleaned(store: Path) -> None:
    assert _state_of(two_steps, "x").is_failed()
    assert only(store / "data", "two_steps/*.part/scratch")
    assert _state_of(two_steps, "x").name == "Completed"
    assert ran == ["made the first", "found the first"]
    assert {path.name for path in (store / "data").rglob("*.*")} == {"first.json", "second.parquet"}
    assert _state_of(two_steps, "x").name == "Cached"


def test_two_processes_at_once_compute_once(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = os.environ | {
        "PREFECT_API_URL": PREFECT_API_URL.value() or "",
        "EYAS_STORE": str(store),
        "EYAS_TEST_LOG": str(log),
    }
    environment.pop("PREFECT_RESULTS_LOCAL_STORAGE_PATH", None)
    code = "import tasks.environment; from tests.artifacts import pipeline; print(pipeline.pipeline())"
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate()[0].split()[-1] for process in both]
    assert answers == [str(pipeline.ANSWER)] * 2
    assert sorted(log.read_text().splitlines()) == sorted(ALL)
    assert run() == [], "this process finds what the others made"


def test_a_run_in_parallel_threads_computes_each_input_once(store: Path) -> None:
    @flow(persist_result=False, result_serializer=ParquetSerializer())
    def same_thing_often() -> None:
        futures = [count.submit(6, 2) for _ in range(6)]
        assert len({future.result().digest() for future in futures}) == 1

    same_thing_often()
    assert ran == ["count"]


def _state_of(task: Any, *args: Any) -> Any:
    states = []

    @flow(persist_result=False, result_serializer=ParquetSerializer())
    def one_task() -> None:
        states.append(task(*args, return_state=True))

    one_task()
    return states[0]


def test_the_sum_is_right(filled: Path) -> None:
    squares = [
        shards
        for numbers in peek(count, upto=6, shard_rows=2).split("numbers")  # type: ignore[union-attr]
        if (shards := peek(square, numbers=numbers))
    ]
    total = peek(add, squares=squares)
    assert total
    assert total.table.to_pylist() == [{"value": pipeline.ANSWER}]
