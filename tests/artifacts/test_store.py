"""The store: where it is, whose layout it has, and whether there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

from schemas.errors import StoreError
from tasks.artifacts.store import open_store, require_space, store_root


def test_a_new_store_says_which_layout_it_has(store: Path) -> None:
    assert json.loads((store / "store.json").read_text())["layout"] == 1
    assert open_store() == store_root() == store


@pytest.mark.parametrize("content", ['{"layout": 2, "eyas": "9.9"}', '{"eyas": "0.0.1"}', "[1]", "{}"])
def test_a_store_of_another_layout_is_refused(store: Path, content: str) -> None:
    (store / "store.json").write_text(content)
    with pytest.raises(StoreError, match=r"layout .* reads layout 1\. Set EYAS_STORE to a new folder"):
        open_store()


def test_the_version_that_wrote_another_layout_is_named(store: Path) -> None:
    (store / "store.json").write_text('{"layout": 2, "eyas": "9.9"}')
    with pytest.raises(StoreError, match=r"layout 2, written by eyas 9\.9"):
        open_store()


def test_a_damaged_marker_is_refused(store: Path) -> None:
    (store / "store.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be used"):
        open_store()


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    results = tmp_path / "file" / "store" / "results"
    with (
        temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: results}),
        pytest.raises(StoreError, match="Set EYAS_STORE to a folder of your own"),
    ):
        open_store()


def test_prefect_must_keep_results_in_a_store(tmp_path: Path) -> None:
    with (
        temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: tmp_path / "storage"}),
        pytest.raises(StoreError, match="which is no store: unset it and set EYAS_STORE"),
    ):
        store_root()


def test_work_that_does_not_fit_is_refused_before_it_begins(store: Path) -> None:
    require_space(1, "a small step")
    with pytest.raises(StoreError, match=r"extraction needs about 1,099,511,627,776 MiB .* are free: .* prune"):
        require_space(2**60, "extraction")


def test_the_store_is_where_the_environment_says(tmp_path: Path) -> None:
    code = "from tasks.artifacts.store import open_store; print(open_store())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_RESULTS")}
    environment["EYAS_STORE"] = str(tmp_path / "mine")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "mine")
    assert (tmp_path / "mine" / "store.json").exists()
