"""The workspace keeps whole files through a kill, and drops what the finished task does not list."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import StoreError
from tasks.artifacts import workspace as module
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace, working_in, workspace
from tests.artifacts.pipeline import NUMBERS

KEY = "count/0123.parquet"


def write_and_publish(folder: Workspace) -> Shards:
    folder.path("journal.jsonl").write_text("half-done work")
    for name in ("a.parquet", "b.parquet"):
        folder.add_table("numbers", name, NUMBERS.table([{"value": 1}, {"value": 2}]), NUMBERS)
    return folder.publish(facts={"x": 1}, measures={"seconds": 2.0})


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_published_files_are_in_their_place_and_nothing_else(store: Path) -> None:
    folder = Workspace(KEY)
    manifest = write_and_publish(folder)
    folder.tidy()
    assert names(store / "data") == {"count", "count/0123", "count/0123/a.parquet", "count/0123/b.parquet"}
    assert [shard.path for shard in manifest.shards] == ["data/count/0123/a.parquet", "data/count/0123/b.parquet"]
    assert manifest.rows("numbers") == 4
    manifest.verify(store, "sha256")


def test_the_next_attempt_finds_what_the_last_one_left(store: Path) -> None:
    (Workspace(KEY).ensure_folder() / "a.json").write_text("7")
    again = Workspace(KEY)
    again.add_file("config", "a.json")
    assert again.publish().file("config").read_text() == "7"


def test_a_new_result_takes_the_place_of_an_old_one(store: Path) -> None:
    write_and_publish(Workspace(KEY))
    again = Workspace(KEY)
    again.add_table("numbers", "c.parquet", NUMBERS.table([{"value": 7}]), NUMBERS)
    again.publish()
    again.tidy()
    assert names(store / "data" / "count") == {"0123", "0123/c.parquet"}


def test_subfolders_are_kept_if_listed(store: Path) -> None:
    folder = Workspace(KEY)
    for name in ("keep/x.json", "drop/y.json"):
        folder.path(name).parent.mkdir(parents=True)
        folder.path(name).write_text("{}")
    folder.add_file("config", "keep/x.json")
    assert folder.publish().file("config") == store / "data" / "count" / "0123" / "keep" / "x.json"
    folder.tidy()
    assert names(store / "data" / "count") == {"0123", "0123/keep", "0123/keep/x.json"}


def killed_while_publishing(at: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork()
    if child == 0:
        try:
            at(monkeypatch)
            write_and_publish(Workspace(KEY))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_before_the_manifest_is_written_leaves_the_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_while_publishing(lambda patch: patch.setattr(module, "write_bytes", die), monkeypatch)
    again = Workspace(KEY)
    assert again.recover() is None
    assert names(again.folder) == {"a.parquet", "b.parquet", "journal.jsonl"}


@pytest.mark.parametrize(
    "moment",
    [
        lambda patch: patch.setattr(Path, "unlink", die),
        lambda patch: patch.setattr(Path, "rename", die),
        lambda patch: patch.setattr(module, "sync_folder", die),
    ],
    ids=["while-dropping", "before-the-rename", "after-the-rename"],
)
def test_a_kill_after_the_manifest_is_written_loses_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch, moment: Callable[[pytest.MonkeyPatch], None]
) -> None:
    expected = write_and_publish(Workspace("count/other.parquet"))
    killed_while_publishing(moment, monkeypatch)
    again = Workspace(KEY)
    found = again.recover()
    again.tidy()
    assert found
    assert found.digest() == expected.digest()
    assert found.measures == expected.measures
    found.verify(store, "sha256")
    assert names(store / "data" / "count" / "0123") == {"a.parquet", "b.parquet"}
    assert not again.folder.exists()


@pytest.mark.parametrize("damage", ["flip", "delete", "manifest"])
def test_a_published_result_that_is_not_whole_is_not_recovered(store: Path, damage: str) -> None:
    folder = Workspace(KEY)
    write_and_publish(folder)
    shard = folder.final / "a.parquet"
    match damage:
        case "flip":
            shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
        case "delete":
            shard.unlink()
        case "manifest":
            (folder.final / ".published.json").write_text("{")
    assert Workspace(KEY).recover() is None
    assert Workspace(KEY).recover() is None


def test_there_is_a_workspace_only_inside_a_task(store: Path) -> None:
    with pytest.raises(StoreError, match="outside an artifact task"):
        workspace()
    folder = Workspace(KEY)
    with working_in(folder):
        assert workspace() is folder
    with pytest.raises(StoreError):
        workspace()
