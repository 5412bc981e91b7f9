"""The shipped recipes can be used as they are, and every shipped prompt file belongs to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.serve import BENCHMARKS, RECIPES
from schemas.benchmarking import load_benchmark_recipe
from schemas.recipe import load_recipe
from tasks.prompts.gather import gather
from tasks.prompts.locate import locate_sources

ROOT = RECIPES.parents[1]
SHIPPED = sorted(RECIPES.glob("*.yaml"))


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_benchmark_loads_and_is_named_like_its_file(path: Path) -> None:
    assert load_benchmark_recipe(path).name == path.stem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_recipe_loads_and_is_named_like_its_file(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_quickstart_keeps_all_of_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # sources are paths from the working folder
    datasets = load_recipe(RECIPES / "quickstart.yaml").datasets
    gathered = gather(datasets, locate_sources(datasets))
    assert (gathered.train.conversations, len(gathered.train)) == (845, 875)
    assert (len(gathered.benchmark), len(gathered.rejected)) == (48, 0)


def test_every_shipped_prompt_file_is_used_by_a_recipe() -> None:
    used = {dataset.source for path in SHIPPED for dataset in load_recipe(path).datasets}
    files = [path.relative_to(ROOT).as_posix() for path in (RECIPES / "prompts").iterdir()]
    assert [file for file in files if file not in used] == []
