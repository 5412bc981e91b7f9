"""A store in which the test pipeline has run once; each test gets a copy."""

import shutil
from pathlib import Path

import pytest
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

from tasks.artifacts.store import open_store
from tests.artifacts.pipeline import broken, incomplete, ran, run


@pytest.fixture(scope="session")
def _finished(prefect_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished") / "store"
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: root / "results"}):
        open_store()
        run()
    return root


@pytest.fixture
def filled(_finished: Path, store: Path) -> Path:
    """The current store, in which the pipeline has run."""
    shutil.copytree(_finished, store, dirs_exist_ok=True)
    return store


@pytest.fixture(autouse=True)
def _all_tasks_work() -> None:
    broken.clear()
    incomplete.clear()
    ran.clear()
