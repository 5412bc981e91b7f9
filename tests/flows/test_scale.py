"""The plan of the large run: its sums are those that a person gets from the stated figures, without any network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.command_line import main
from flows.forecast import draft_weights
from flows.scale import (
    Tokens,
    count_tokens,
    read_target,
    scale_forecast,
    sizes_of,
    state_bytes,
    training_flops,
    unpinned,
)
from schemas.errors import RecipeError
from schemas.recipe import Recipe, load_recipe
from schemas.scale import DatasetSize, ScaleSpec

ROOT = Path(__file__).parents[2]
KIMI = ROOT / "deployments" / "recipes" / "kimi-k2.5.yaml"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return yaml.safe_load(KIMI.read_text())


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(KIMI)


@pytest.fixture(scope="module")
def spec(recipe: Recipe) -> ScaleSpec:
    assert recipe.scale is not None
    return recipe.scale


@pytest.fixture(scope="module")
def facts(spec: ScaleSpec) -> dict[str, Any]:
    return read_target(ROOT / spec.target)


def test_the_plan_agrees_with_what_is_known_of_such_a_run(
    recipe: Recipe, facts: dict[str, Any], spec: ScaleSpec
) -> None:
    for answer, tokens, hours in ((2000, 166e6, (23, 31)), (10_000, 830e6, (115, 154))):
        steps = {step.step: step for step in scale_forecast(recipe, facts, spec, answer, 0.2)}
        assert steps["generate"].rows == 83_000
        assert steps["generate"].tokens == tokens
        assert steps["generate"].hours.low == pytest.approx(hours[0], abs=0.5)
        assert steps["generate"].hours.high == pytest.approx(hours[1], abs=0.5)


def test_all_four_states_of_ten_thousand_tokens_an_answer_take_47_6_terabytes(content: dict[str, Any]) -> None:
    whole = Recipe.model_validate(content | {"extraction": {}})
    assert state_bytes(whole, 7168, Tokens(83_000, 0, 830e6)) / 1e12 == pytest.approx(47.6, abs=0.05)


def test_what_shrinks_the_states_is_in_the_plan(content: dict[str, Any]) -> None:
    def size(**extraction: Any) -> float:
        return state_bytes(Recipe.model_validate(content | {"extraction": extraction}), 7168, Tokens(100, 5e5, 1e6))

    whole = size()
    assert whole == (3 * 1.5e6 + 1e6) * 7168 * 2
    assert size(teacher_top_k=64) == 3 * 1.5e6 * 7168 * 2 + 1e6 * 64 * 8
    assert size(prompt_window=1000) == (3 * 1.1e6 + 1e6) * 7168 * 2
    assert size(storage="float8") == whole / 2
    assert size(online=True) == 0


def test_the_draft_is_that_of_the_parent(recipe: Recipe, facts: dict[str, Any]) -> None:
    assert draft_weights(recipe, facts) == 1_190_948_864


def test_training_counts_every_answer_token_k_times_through_the_draft(recipe: Recipe, facts: dict[str, Any]) -> None:
    flops = training_flops(recipe, facts, Tokens(1, 0, 1e6))
    visits = recipe.training.epochs * 1e6
    assert flops == visits * (6 * 1_190_948_864 * recipe.training.ttt_steps + 2 * 7168 * 32000)
    assert training_flops(recipe, facts, Tokens(1, 1e6, 1e6)) > flops


def test_later_turns_ask_again_what_was_said_before() -> None:
    tokens = count_tokens(DatasetSize(conversations=10, turns=3, prompt_tokens=100), answer=50, kept=0.5)
    assert tokens == Tokens(turns=30, prompts=10 * (100 + 225 + 350), answers=10 * 150)


def test_dollars_are_those_of_the_recipes_prices(recipe: Recipe, facts: dict[str, Any], spec: ScaleSpec) -> None:
    steps = {step.step: step for step in scale_forecast(recipe, facts, spec, 2000, 0.2)}
    prompts = steps["extract"].tokens - steps["generate"].tokens
    assert steps["generate"].usd.low == pytest.approx((0.6 * prompts + 3.0 * 166e6) / 1e6)
    extract = steps["extract"]
    assert extract.usd.low == pytest.approx(extract.gpu_hours.low * 2.5)
    assert extract.usd.high == pytest.approx(extract.gpu_hours.high * 4.0)
    assert extract.gpu_hours.high == pytest.approx(8 * extract.tokens / 8000 / 3600)


def test_a_dry_run_of_the_large_recipe_needs_no_network_and_no_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise AssertionError("a dry run opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("EYAS_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(ROOT)
    main([str(KIMI), "--dry-run"])
    printed = capsys.readouterr().out
    for text in ("83,000", "23.1 – 30.7", "115.3 – 153.7", "datasets.glaive.revision", "draft.parent.revision"):
        assert text in printed
    assert "1.19 billion weights" in printed
    assert not (tmp_path / "store").exists()


def test_only_what_no_file_knows_is_missing(recipe: Recipe) -> None:
    missing = unpinned(recipe)
    assert "datasets.swe_smith.revision" not in missing
    assert "datasets.deepswe_kimi.revision" not in missing
    assert len(missing) == 11


def changed(content: dict[str, Any], **scale: Any) -> Recipe:
    return Recipe.model_validate(content | {"scale": content["scale"] | scale})


def test_a_dataset_without_a_size_is_named(content: dict[str, Any]) -> None:
    datasets = dict(content["scale"]["datasets"])
    del datasets["ultrachat"]
    found = changed(content, datasets=datasets)
    assert found.scale
    with pytest.raises(RecipeError, match="lacks 'ultrachat'"):
        sizes_of(found, found.scale)
    found = changed(content, datasets=content["scale"]["datasets"] | {"other": {"prompt_tokens": 9}})
    assert found.scale
    with pytest.raises(RecipeError, match="names 'other'"):
        sizes_of(found, found.scale)


def test_a_target_without_a_size_is_named(tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    path.write_text(json.dumps({"vocab_size": 5}))
    with pytest.raises(RecipeError, match="lacks hidden_size, intermediate_size"):
        read_target(path)
    with pytest.raises(RecipeError, match="cannot be read"):
        read_target(tmp_path / "none.json")


def test_sizes_come_from_a_folder_with_a_config_alone(tmp_path: Path, facts: dict[str, Any]) -> None:
    text = {
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 262144,
        "vocab_size": 163840,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    assert read_target(tmp_path) == {name: facts[name] for name in read_target(tmp_path)}
    del text["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(text))
    with pytest.raises(RecipeError, match="lacks vocab_size"):
        read_target(tmp_path)


def test_a_range_must_be_in_order(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above high"):
        changed(content, usd_per_gpu_hour={"low": 5, "high": 4, "source": "x"})
