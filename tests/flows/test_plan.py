"""A dry run prints what the recipe would cost, and runs nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import flows.plan
from flows.command_line import main
from flows.forecast import Forecast, Prompts, Speed, forecast
from flows.plan import print_plan
from schemas.errors import PromptSourceError, RecipeError, TargetError, TokenFormatError
from schemas.recipe import Recipe, load_recipe
from tasks.artifacts.artifact import Shards
from tasks.target.convert import CONVERTIBLE
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


def test_every_turn_of_a_conversation_is_a_prompt_with_what_was_said_before(
    store: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(tmp_path, tiny_target)
    questions = ["How deep is a river?", "And its clock?", "And a garden?"]
    messages = [
        message
        for question in questions
        for message in ({"role": "user", "content": question}, {"role": "assistant", "content": "Recorded."})
    ]
    with open(tmp_path / "train.jsonl", "a") as file:
        file.write(json.dumps({"id": "talk", "messages": messages}) + "\n")
    counted: list[Prompts] = []

    def noting(recipe: Recipe, facts: dict[str, Any], prompts: Prompts, speed: Speed) -> list[Forecast]:
        counted.append(prompts)
        return forecast(recipe, facts, prompts, speed)

    monkeypatch.setattr(flows.plan, "forecast", noting)
    print_plan(load_recipe(path))
    one = len(json.dumps([{"content": "", "role": "user"}], separators=(",", ":")))
    said = sum(one + len(text) for text in TRAIN) + sum(
        (len(questions) - place) * (one + len(question)) for place, question in enumerate(questions)
    )
    assert counted == [Prompts(len(TRAIN) + 3, len(BENCHMARK), said, counted[0].benchmark_characters, 0 + 1 + 2)]


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


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"token_format": "kimi-k2.5"}, "is no control token"),
        ({"token_format": "kimi-k9"}, "there is no token format 'kimi-k9'"),
        ({"template_switches": {"enable_thinking": False}}, "does not read enable_thinking"),
    ],
)
def test_a_wheels_token_format_and_switches_are_checked_as_a_folders_are(
    store: Path, tiny_target: Path, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny_target))
    target = recipe.target.model_copy(update={"model": CONVERTIBLE, **fields})
    with pytest.raises((TargetError, TokenFormatError), match=says):
        print_plan(recipe.model_copy(update={"target": target}))
