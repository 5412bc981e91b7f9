"""A dry run prints what the recipe would cost, and runs nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.command_line import main
from flows.forecast import Prompts, Speed, forecast
from flows.plan import print_plan
from schemas.errors import PromptSourceError, RecipeError
from schemas.recipe import load_recipe
from tasks.artifacts.artifact import Shards
from tests.flows.recipes import BENCHMARK, TRAIN, write_recipe


def test_a_dry_run_prints_every_step_and_runs_none(
    store: Path, tiny_target: Path, tiny_artifact: Shards, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path, tiny_target)
    main([str(path), "--dry-run"])
    printed = capsys.readouterr().out
    steps = forecast(load_recipe(path), tiny_artifact.facts, Prompts(6, 2, 600, 200), Speed(1e9, 1e9, 1))
    for step in [*(step.step for step in steps), "all"]:
        assert re.search(rf"│ {step} +│.*\d+:\d\d │.* MiB │", printed), f"{step} is missing in:\n{printed}"
    assert f"{len(TRAIN)} training and {len(BENCHMARK)} benchmark prompts" in printed
    assert not (store / "results").exists()
    assert not (store / "data").exists()


def test_a_plan_without_its_prompts_names_the_file(store: Path, tiny_target: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_target)
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(PromptSourceError, match=r"dataset 'words'.*train\.jsonl does not exist"):
        print_plan(load_recipe(path))


def test_a_recipe_that_does_not_fit_its_target_is_refused(store: Path, tiny_target: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"vocabulary\.size is 60000"):
        print_plan(load_recipe(write_recipe(tmp_path, tiny_target, vocabulary={"size": 60000})))


def test_holding_out_all_prompts_is_refused(store: Path, tiny_target: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"corpus\.heldout is 6"):
        print_plan(load_recipe(write_recipe(tmp_path, tiny_target, corpus={"heldout": len(TRAIN)})))
