"""Files are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import ArtifactInvalid, ContractViolation
from tasks.artifacts import files
from tasks.artifacts.files import (
    atomic_file,
    parquet_bytes,
    read_table,
    sha256_file,
    verify_file,
    write_bytes,
    write_table,
)
from tests.artifacts.pipeline import NUMBERS


def killed(action: Callable[[], None]) -> None:
    """Run something in a child process that must end by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@given(st.binary(), st.binary())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_holds_what_was_written_last(tmp_path: Path, first: bytes, second: bytes) -> None:
    path = tmp_path / "folder" / "file"
    write_bytes(path, first)
    assert path.read_bytes() == first
    write_bytes(path, second)
    assert path.read_bytes() == second
    assert [found.name for found in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("written", [b"", b"half of the ne"])
def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def half() -> None:
        with atomic_file(path) as handle:
            handle.write(written)
            handle.flush()
            die()

    killed(half)
    assert path.read_bytes() == b"old"
    assert all(found.name == "file" or found.suffix == ".tmp" for found in tmp_path.iterdir())


def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    monkeypatch.setattr(files.os, "replace", lambda *_: die())
    killed(lambda: write_bytes(path, b"new"))
    assert path.read_bytes() == b"old"


def test_an_error_while_writing_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def fail() -> None:
        with atomic_file(path) as handle:
            handle.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.integers(0, 2**63 - 1), max_size=50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_is_read_as_written_and_equal_tables_are_equal_files(tmp_path: Path, values: list[int]) -> None:
    table = NUMBERS.table([{"value": value} for value in values])
    write_table(tmp_path / "one.parquet", table, NUMBERS)
    write_table(tmp_path / "other.parquet", pa.concat_tables([table.slice(0, 3), table.slice(3)]), NUMBERS)
    assert read_table(tmp_path / "one.parquet", NUMBERS).equals(table)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "other.parquet").read_bytes()


def test_a_table_of_another_contract_is_refused(tmp_path: Path) -> None:
    other = pa.table({"value": ["text"]})
    with pytest.raises(ContractViolation, match="test_numbers"):
        write_table(tmp_path / "file.parquet", other, NUMBERS)
    assert list(tmp_path.iterdir()) == []
    write_bytes(tmp_path / "file.parquet", parquet_bytes(other, {}))
    with pytest.raises(ContractViolation, match="test_numbers"):
        read_table(tmp_path / "file.parquet", NUMBERS)


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file.parquet", b"not Parquet at all")
    with pytest.raises(ArtifactInvalid, match="not readable Parquet"):
        read_table(tmp_path / "file.parquet", NUMBERS)


@given(st.binary(min_size=1), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_flipped_bit_is_found(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    path = tmp_path / "file"
    write_bytes(path, content)
    sha256 = sha256_file(path)
    verify_file(path, len(content), sha256, "sha256")
    position = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[position // 8] ^= 1 << position % 8
    write_bytes(path, bytes(flipped))
    with pytest.raises(ArtifactInvalid, match="SHA-256"):
        verify_file(path, len(content), sha256, "sha256")


def test_missing_and_cut_files_are_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ArtifactInvalid, match="is missing"):
        verify_file(path, 3, "0" * 64, "size")
    write_bytes(path, b"ab")
    with pytest.raises(ArtifactInvalid, match="2 bytes, 3 were written"):
        verify_file(path, 3, "0" * 64, "size")
    with pytest.raises(ArtifactInvalid, match="cannot be read"):
        verify_file(path / "below", 3, "0" * 64, "size")
