"""What a recipe will cost: tokens, seconds and bytes per step, from the target's shape and this machine's matrix speed.

Arithmetic, not promises: work is counted in floating point operations, and the speed is measured for a quarter of a
second on the matrix shapes of decoding and of prefill.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from schemas.corpus import STATE_BYTES
from schemas.recipe import Recipe
from tasks.wheels import WHEEL

MEAN_ANSWER_SHARE = 0.8  # of max_tokens: some answers end earlier
CHARACTERS_PER_TOKEN = 4.0
TEMPLATE_TOKENS = 30
EXPECTED_ACCEPTANCE = 1.4  # tokens per verify step of a small draft
OVERHEAD = 1.4  # what attention, sampling and Python add to the matrix products
WHEEL_SECONDS = 16.0  # to dequantise and write a small model
_FLOAT_BYTES = 4
_PROBE_SECONDS = 0.25


@dataclass(frozen=True)
class Prompts:
    """How many prompts there are, how many characters they have in all, and how many answers stand in them."""

    train: int
    benchmark: int
    train_characters: int
    benchmark_characters: int
    train_history: int = 0  # answers to earlier turns, in all training prompts


@dataclass(frozen=True)
class Speed:
    """Matrix products on one thread, in floating point operations per second, and how many tasks run at once."""

    decode: float
    prefill: float
    workers: int


@dataclass(frozen=True)
class Forecast:
    """One step of the plan; seconds are of the wall, bytes are what stays in the store."""

    step: str
    rows: int
    tokens: int
    seconds: float
    bytes: int


def measure_speed(workers: int, hidden: int, intermediate: int) -> Speed:
    """Time the target's feed-forward shape with 64 rows (decoding) and 512 rows (prefill), on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = [_matmul_rate(rows, hidden, intermediate) for rows in (64, 512)]
    finally:
        torch.set_num_threads(threads)
    return Speed(decode=rates[0], prefill=rates[1], workers=workers)


def forecast(recipe: Recipe, facts: dict[str, Any], prompts: Prompts, speed: Speed) -> list[Forecast]:
    """The plan of a recipe, step by step.

    Args:
        facts: the target's shape, as `prepare_target` states it.
        prompts: what the recipe's sources hold.
        speed: this machine.
    """
    served = recipe.generation.is_served
    mean_answer = (recipe.generation.serving.short if served else recipe.generation).max_tokens * MEAN_ANSWER_SHARE
    answer_tokens = int(prompts.train * mean_answer)
    prompt_tokens = _tokens(prompts.train, prompts.train_characters) + int(prompts.train_history * mean_answer)
    body, head = _body_weights(facts), facts["vocab_size"] * facts["hidden_size"]  # the embeddings are as many
    is_wheel = recipe.target.model.startswith(WHEEL)
    wall = OVERHEAD / speed.workers

    generate = 2 * (answer_tokens * (body + head) / speed.decode + prompt_tokens * body / speed.prefill) * wall
    generate = 0 if served else generate  # how fast a server is, only its answers tell
    corpus_tokens = prompt_tokens + answer_tokens
    state_bytes = (3 * corpus_tokens + answer_tokens) * facts["hidden_size"] * STATE_BYTES
    extract = 2 * corpus_tokens * body / speed.prefill * wall

    draft = draft_weights(recipe, facts)
    visits = int(answer_tokens * recipe.training.epochs)
    train = 6 * visits * recipe.training.ttt_steps * draft / speed.prefill * OVERHEAD / recipe.compute.training_threads

    runs = (2 + len(recipe.benchmark.baselines)) * len(recipe.benchmark.temperatures)
    bench_tokens = prompts.benchmark * recipe.benchmark.max_tokens * runs
    forwards = bench_tokens * (1 + recipe.benchmark.chain) / EXPECTED_ACCEPTANCE
    bench = 2 * forwards * (body + head) / speed.decode * wall
    return [
        Forecast("target", 0, 0, WHEEL_SECONDS if is_wheel else 0, _FLOAT_BYTES * (body + head) if is_wheel else 0),
        Forecast("prompts", prompts.train + prompts.benchmark, 0, 1, prompts.train_characters),
        Forecast("generate", prompts.train, answer_tokens, generate, 4 * corpus_tokens),
        Forecast("reconstruct", prompts.train, corpus_tokens, 1, 4 * corpus_tokens),
        Forecast("validate", prompts.train, corpus_tokens, 1, 4 * corpus_tokens),
        Forecast("corpus", prompts.train, corpus_tokens, 1, 4 * corpus_tokens),
        Forecast("vocabulary", recipe.vocabulary.size, answer_tokens, 1, 17 * recipe.vocabulary.size),
        Forecast("extract", prompts.train, corpus_tokens, extract, state_bytes),
        Forecast("train", prompts.train, visits, train, _FLOAT_BYTES * draft),
        Forecast("export", 2, 0, 1, 2 * 2 * draft),
        Forecast("benchmark", prompts.benchmark * runs, bench_tokens, bench, 4 * bench_tokens),
    ]


def draft_weights(recipe: Recipe, facts: dict[str, Any]) -> int:
    """Number of weights of the draft that the recipe describes."""
    wide_target = facts["hidden_size"]
    hidden, dim = recipe.draft.hidden_size or wide_target, recipe.draft.head_dim or facts["head_dim"]
    heads = recipe.draft.num_attention_heads or facts["num_attention_heads"]
    kv_heads = recipe.draft.num_key_value_heads or min(facts["num_key_value_heads"], heads)
    wide = recipe.draft.intermediate_size or facts["intermediate_size"]
    attention = 2 * hidden * dim * (heads + 2 * kv_heads) + heads * dim * hidden
    norms = 4 * hidden + (3 * wide_target if recipe.draft.fc_norm else 0)
    tokens = recipe.vocabulary.size + (0 if hidden == wide_target else facts["vocab_size"])
    return 3 * wide_target * hidden + attention + 3 * hidden * wide + norms + tokens * hidden


def _body_weights(facts: dict[str, Any]) -> int:
    hidden, dim = facts["hidden_size"], facts["head_dim"]
    attention = hidden * dim * (2 * facts["num_attention_heads"] + 2 * facts["num_key_value_heads"])
    return facts["num_layers"] * (attention + 3 * hidden * facts["intermediate_size"])


def _tokens(rows: int, characters: int) -> int:
    return int(characters / CHARACTERS_PER_TOKEN) + rows * TEMPLATE_TOKENS


def _matmul_rate(rows: int, hidden: int, intermediate: int) -> float:
    left, right = torch.randn(rows, hidden), torch.randn(hidden, intermediate)
    torch.mm(left, right)
    done, started = 0, time.thread_time()  # not the wall's: the forecast is for an idle machine
    while (spent := time.thread_time() - started) < _PROBE_SECONDS:
        torch.mm(left, right)
        done += 1
    return 2 * rows * hidden * intermediate * max(done, 1) / spent
