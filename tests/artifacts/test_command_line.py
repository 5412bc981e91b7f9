"""`python -m tasks.artifacts`: what it shows, what it finds damaged, and what it removes."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path

import pytest

from tasks.artifacts.__main__ import main
from tasks.artifacts.catalog import scan
from tasks.artifacts.display import age, size
from tasks.artifacts.locks import FlockManager
from tests.artifacts.pipeline import only, run

DAY = 86400.0


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints, after a check of its exit code."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def grow_old(root: Path, days: float, *keep: str) -> None:
    """Set all files back in time, but those of the artifacts that are to stay young."""
    then = time.time() - days * DAY
    for path in root.rglob("*"):
        if not any(name in str(path) for name in keep):
            os.utime(path, (then, then))


def key_of(root: Path, step: str) -> str:
    return next(entry.key for entry in scan(root).entries.values() if entry.step == step)


def test_ls_lists_every_artifact(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "ls")
    for entry in scan(filled).entries.values():
        assert entry.step in text
        assert Path(entry.key).stem[:12] in text
    assert "3 shards" in text
    assert "rows of test_numbers" in text
    assert "5 artifacts" in text


def test_ls_can_list_one_step(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "3 artifacts" in said(capsys, "ls", "--step", "square")
    assert "0 artifacts" in said(capsys, "ls", "--step", "unheard-of")


def test_ls_names_damaged_results(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(filled / "results", "add/*.parquet").write_bytes(b"PAR1 not really")
    text = said(capsys, "ls", code=1)
    assert "4 artifacts" in text
    assert "damaged add/" in text


@pytest.mark.parametrize("form", ["{key}", "{step}/{stem}", "{step}/{short}", "{stem}", "{short}", "{step}"])
def test_show_takes_any_unique_name(filled: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    key = key_of(filled, "add")
    stem = Path(key).stem
    text = said(capsys, "show", form.format(key=key, step="add", stem=stem, short=stem[:12]))
    assert key in text


def test_show_tells_schema_lineage_facts_and_rows(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", "count", "--rows", "2")
    for expected in (
        "digest",
        "task version 1",
        "upto",
        "shard_rows",
        "numbers-00002.parquet",
        "test_numbers",
        "int64",
    ):
        assert expected in text
    assert "row 1" in text
    assert "row 2" not in text


def test_unknown_and_ambiguous_names_are_explained(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no artifact is called 'nothing'" in said(capsys, "show", "nothing", code=2)
    assert "'square' fits 3 artifacts: square/" in said(capsys, "show", "square", code=2)
    assert "no artifact is called ''" in said(capsys, "lineage", "", code=2)


def test_lineage_goes_back_to_the_beginning(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "lineage", "add")
    lines = text.splitlines()
    assert lines[0].startswith("add/")
    assert [line.split()[1] for line in lines if "squares[" in line] == [f"squares[{i}]:" for i in range(3)]
    assert text.count("count/") == 3, "each square was made from a shard of the numbers"
    assert text.count("(see above)") == 2


def test_lineage_says_what_is_gone(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(filled / "index", "count/*.json").unlink()
    assert said(capsys, "lineage", "add").count("no longer in the store") == 3


def test_a_whole_store_verifies(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "5 results and 6 shards checked by SHA-256: all whole" in said(capsys, "verify")


def test_verify_lists_every_fault(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = sorted((filled / "data" / "count").glob("*/*.parquet"))
    numbers[0].unlink()
    numbers[1].write_bytes(b"x" + numbers[1].read_bytes()[1:])
    result = only(filled / "results", "add/*.parquet")
    content = bytearray(result.read_bytes())
    content[20] ^= 1
    result.write_bytes(content)
    text = said(capsys, "verify", code=1)
    assert "3 faults" in text
    assert f"{numbers[0]} is missing" in text
    assert f"{numbers[1]} has SHA-256" in text
    assert any(line.startswith("add/") for line in text.splitlines())


def test_nothing_recent_is_removed(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to remove" in said(capsys, "prune", "--older-than", "7d", "--yes")
    assert run() == []


def test_prune_says_and_keeps_without_yes(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grow_old(filled, 8)
    before = sorted(filled.rglob("*"))
    text = said(capsys, "prune", "--older-than", "7d")
    assert text.count("unreferenced") == 5
    assert "8 d" in text
    assert "nothing was removed" in text
    assert sorted(filled.rglob("*")) == before


def test_prune_removes_what_no_run_used(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grow_old(filled, 8)
    assert "removed 5 things" in said(capsys, "prune", "--older-than", "7d", "--yes")
    assert scan(filled).entries == {}
    assert [path for path in filled.rglob("*.parquet*") if path.is_file()] == []


def test_what_a_kept_artifact_was_made_from_is_kept(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grow_old(filled, 8, "/add/")
    assert "nothing to remove" in said(capsys, "prune", "--older-than", "7d", "--yes")
    grow_old(filled, 8)
    first = sorted(entry.key for entry in scan(filled).entries.values() if entry.step == "square")[0]
    os.utime(filled / "index" / f"{first}.json")
    said(capsys, "prune", "--older-than", "7d", "--yes")
    assert {entry.key for entry in scan(filled).entries.values()} == {first, key_of(filled, "count")}


def test_an_artifact_that_a_run_found_again_is_young(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grow_old(filled, 8)
    assert run() == []
    assert "nothing to remove" in said(capsys, "prune", "--older-than", "7d", "--yes")


def test_leftovers_go_when_they_are_old(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = filled / "data" / "count" / "0123.part"
    part.mkdir()
    (part / "journal").write_text("x")
    (filled / "index" / ".store.json.1.tmp").write_text("x")
    (filled / "results" / "0123456789abcdef").write_bytes(b"PAR1")
    (filled / "results" / "count" / "0456.parquet").write_bytes(b"PAR1")
    assert "nothing to remove" in said(capsys, "prune", "--older-than", "1d", "--yes")
    grow_old(filled, 2, *(entry.key.removesuffix(".parquet") for entry in scan(filled).entries.values()))
    text = said(capsys, "prune", "--older-than", "1d", "--yes")
    assert "removed 4 things" in text
    for word in ("unfinished", "temporary", "failure"):
        assert word in text
    assert not part.exists()
    assert run() == []


def test_a_temporary_file_that_may_be_in_use_stays(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    temporary = filled / "index" / ".a.1.tmp"
    temporary.write_text("x")
    said(capsys, "prune", "--older-than", "0s", "--yes")
    assert temporary.exists()


def test_what_a_running_task_holds_stays(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = key_of(filled, "add")
    part = filled / "data" / "count" / "0123.part"
    part.mkdir()
    grow_old(filled, 8)
    locks = FlockManager()
    for held in (key, "count/0123.parquet"):
        locks.acquire_lock(held, "a running task")
    text = said(capsys, "prune", "--older-than", "7d", "--yes")
    assert text.count("in use, kept") == 2
    assert part.exists()
    assert scan(filled).entries.keys() == {key}


@pytest.mark.parametrize("text", ["7", "d", "7 days", "-1d", "1.5h"])
def test_an_age_that_is_none_is_refused(store: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["prune", f"--older-than={text}"])
    assert stopped.value.code == 2
    assert "give a number and s, m, h, d or w" in capsys.readouterr().err


def test_a_folder_that_is_no_store_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "store.json").unlink()
    assert "there is no store in" in said(capsys, "ls", code=1)
    assert not (store / "store.json").exists()


def test_a_store_of_another_layout_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "store.json").write_text('{"layout": 7}')
    assert "layout 7" in said(capsys, "ls", code=1)


def test_an_empty_store_is_listed_and_whole(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 artifacts" in said(capsys, "ls")
    assert "0 results and 0 shards" in said(capsys, "verify")
    assert "nothing to remove" in said(capsys, "prune", "--older-than", "0s", "--yes")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (2**41, "2,048.0 GiB")],
)
def test_sizes_are_readable(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (119, "1 min"), (7200, "2 h"), (200000, "2 d")])
def test_ages_are_readable(seconds: int, text: str) -> None:
    assert age(datetime.timedelta(seconds=seconds)) == text
