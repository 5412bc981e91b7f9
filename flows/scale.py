"""What a recipe costs on machines that are not this one: tokens, hours, bytes and dollars from stated assumptions.

Arithmetic that a person can repeat: every number that goes in is in the recipe, with its source, and is printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.forecast import draft_weights
from schemas.corpus import STATE_BYTES
from schemas.errors import RecipeError
from schemas.recipe import Recipe
from schemas.scale import DatasetSize, ScaleSpec
from tasks.prompts.hub import HUB

JSON_BYTES_PER_VALUE = 20  # a state's value as SGLang writes it; measured: 33 to 35 kB for 3 x 576 of them
_TOP_BYTES = 8  # an id and a log-probability
_HOUR = 3600.0
_FLOPS_PER_WEIGHT = 6  # forward and backward
_KEYS_AND_VALUES = 2  # of the four attention matrices, what a prompt's rows need of the draft


@dataclass(frozen=True)
class Between:
    """A figure from the best to the worst assumption."""

    low: float
    high: float

    def __add__(self, other: Between) -> Between:
        return Between(self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Between:
        """Both ends, multiplied."""
        return Between(self.low * factor, self.high * factor)


NOTHING = Between(0, 0)


@dataclass(frozen=True)
class ScaleStep:
    """One step of a large run."""

    step: str
    rows: float
    tokens: float
    hours: Between
    gpu_hours: Between
    bytes: float
    usd: Between


@dataclass(frozen=True)
class Tokens:
    """What is asked and answered in all."""

    turns: float
    prompts: float
    answers: float

    @property
    def all(self) -> float:
        """Tokens of all sequences."""
        return self.prompts + self.answers


def read_target(path: Path) -> dict[str, Any]:
    """The sizes of a target from the file that `scale.target` names, or from the config.json of a model's folder.

    Raises:
        RecipeError: the file is missing or damaged, or lacks a size.
    """
    place = path / "config.json" if path.is_dir() else path
    try:
        content: Any = json.loads(place.read_bytes())
    except (OSError, ValueError) as exc:
        raise RecipeError(f"scale.target is {path}, which cannot be read: {exc}") from exc
    facts = content if isinstance(content, dict) else {}
    if path.is_dir():
        facts = _facts_of_config(facts)
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_attention_heads", "head_dim")
    if missing := [name for name in (*needed, "num_key_value_heads", "context") if not facts.get(name)]:
        raise RecipeError(f"scale.target is {path}, which lacks {', '.join(missing)}")
    return facts


def _facts_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's own config.json, or the text part of it, in our words; no code of the model is run."""
    text: Mapping[str, Any] = config.get("text_config") or config
    names = {"num_layers": "num_hidden_layers", "context": "max_position_embeddings"}
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "num_key_value_heads")
    facts = {name: text.get(names.get(name, name)) for name in (*kept, *names)}
    heads, hidden = facts["num_attention_heads"], facts["hidden_size"]
    facts["num_key_value_heads"] = facts["num_key_value_heads"] or heads
    # latent attention has no head_dim; its values have the width that a plain head would have
    facts["head_dim"] = facts["head_dim"] or text.get("v_head_dim") or (hidden // heads if hidden and heads else None)
    return facts


def sizes_of(recipe: Recipe, spec: ScaleSpec) -> dict[str, DatasetSize]:
    """The size of each training dataset.

    Raises:
        RecipeError: one has none, or its size is not known.
    """
    named = {dataset.name: dataset for dataset in recipe.datasets if dataset.split == "train"}
    if unknown := sorted(set(spec.datasets) - set(named)):
        raise RecipeError(f"scale.datasets names {unknown[0]!r}, which is no training dataset of the recipe")
    if missing := sorted(set(named) - set(spec.datasets)):
        raise RecipeError(f"scale.datasets lacks {missing[0]!r}: give the size of every training dataset")
    sizes = {}
    for name, dataset in named.items():
        size = spec.datasets[name]
        count = size.conversations or dataset.limit
        if not count:
            raise RecipeError(f"scale.datasets.{name}.conversations is 0, and the dataset has no limit: give one")
        turns = min(size.turns, dataset.turns or size.turns)
        sizes[name] = size.model_copy(update={"conversations": count, "turns": turns})
    return sizes


def count_tokens(size: DatasetSize, answer: float, kept: float) -> Tokens:
    """Tokens of one dataset: a turn's prompt has all turns before it, and what is kept of their answers."""
    turns = size.turns
    asked = size.prompt_tokens * turns * (turns + 1) / 2
    history = answer * kept * turns * (turns - 1) / 2
    return Tokens(
        turns=size.conversations * turns,
        prompts=size.conversations * (asked + history),
        answers=size.conversations * turns * answer,
    )


def scale_forecast(
    recipe: Recipe, facts: Mapping[str, Any], spec: ScaleSpec, answer: float, kept: float
) -> list[ScaleStep]:
    """The plan for one length of answers, step by step.

    Args:
        recipe: what is run.
        facts: the target's sizes.
        spec: the assumptions.
        answer: tokens per answer.
        kept: share of an answer that stays in later prompts.
    """
    parts = [count_tokens(size, answer, kept) for size in sizes_of(recipe, spec).values()]
    total = Tokens(*(sum(getattr(part, name) for part in parts) for name in ("turns", "prompts", "answers")))
    return [
        _generation(recipe, spec, total),
        ScaleStep("validate, corpus", total.turns, total.all, NOTHING, NOTHING, 2 * 4 * total.all, NOTHING),
        _extraction(recipe, facts, spec, total),
        _training(recipe, facts, spec, total),
        ScaleStep("export", 1, 0, NOTHING, NOTHING, 2 * draft_weights(recipe, dict(facts)), NOTHING),
    ]


def state_bytes(recipe: Recipe, hidden: int, total: Tokens) -> float:
    """Bytes of the hidden states on disk."""
    extraction = recipe.extraction
    if extraction.online:
        return 0.0
    width = 1 if extraction.storage == "float8" else STATE_BYTES
    prompts = min(total.prompts, extraction.prompt_window * total.turns) if extraction.prompt_window else total.prompts
    teacher = _TOP_BYTES * extraction.teacher_top_k if extraction.teacher_top_k else width * hidden
    return 3 * width * hidden * (prompts + total.answers) + teacher * total.answers


def json_bytes(recipe: Recipe, hidden: int, total: Tokens) -> float:
    """Bytes that SGLang sends as JSON for the auxiliary states; other engines write files."""
    return 3 * hidden * JSON_BYTES_PER_VALUE * total.all if recipe.extraction.engine == "sglang" else 0.0


def training_flops(recipe: Recipe, facts: Mapping[str, Any], total: Tokens) -> float:
    """Operations of training: every answer token K times through the draft, every prompt token for keys and values."""
    draft, hidden = draft_weights(recipe, dict(facts)), facts["hidden_size"]
    heads = recipe.draft.num_key_value_heads or facts["num_key_value_heads"]
    prompt = 3 * hidden * hidden + _KEYS_AND_VALUES * 2 * hidden * heads * (recipe.draft.head_dim or facts["head_dim"])
    teacher = 2 * hidden * recipe.vocabulary.size  # forward only
    epochs, steps = recipe.training.epochs, recipe.training.ttt_steps
    answers = total.answers * (_FLOPS_PER_WEIGHT * draft * steps + teacher)
    return epochs * (answers + total.prompts * _FLOPS_PER_WEIGHT * prompt)


def unpinned(recipe: Recipe) -> list[str]:
    """What a run needs and a dry run does not: commits of Hub datasets and of the parent."""
    datasets = [d.name for d in recipe.datasets if d.source.startswith(HUB) and not d.revision]
    missing = [f"datasets.{name}.revision" for name in datasets]
    parent = recipe.draft.parent
    if parent.model and not Path(parent.model).is_dir() and not parent.revision:
        missing.append("draft.parent.revision")
    return missing


def _generation(recipe: Recipe, spec: ScaleSpec, total: Tokens) -> ScaleStep:
    rate, price = spec.generation_tokens_per_second, recipe.generation.serving.price
    hours = _hours(total.answers, rate.low, rate.high)
    billed = total.prompts * price.prompt_usd_per_million + total.answers * price.completion_usd_per_million
    usd = Between(billed / 1e6, billed / 1e6)
    return ScaleStep("generate", total.turns, total.answers, hours, NOTHING, 4 * total.all, usd)


def _extraction(recipe: Recipe, facts: Mapping[str, Any], spec: ScaleSpec, total: Tokens) -> ScaleStep:
    rate, epochs = spec.extraction_tokens_per_second, recipe.training.epochs if recipe.extraction.online else 1
    hours = _hours(total.all * epochs, rate.low, rate.high)
    gpu_hours = hours.times(spec.extraction_gpus)
    size = state_bytes(recipe, facts["hidden_size"], total)
    return ScaleStep("extract", total.turns, total.all * epochs, hours, gpu_hours, size, _usd(gpu_hours, spec))


def _training(recipe: Recipe, facts: Mapping[str, Any], spec: ScaleSpec, total: Tokens) -> ScaleStep:
    speed = spec.training_teraflops_per_gpu
    flops = training_flops(recipe, facts, total)
    gpu_hours = _hours(flops, speed.low * 1e12, speed.high * 1e12)
    hours = gpu_hours.times(1 / spec.training_gpus)
    visits = total.answers * recipe.training.epochs
    masters = 3 * 4 * draft_weights(recipe, dict(facts))  # weights and moments of a checkpoint, float32
    return ScaleStep("train", total.turns, visits, hours, gpu_hours, 3 * masters, _usd(gpu_hours, spec))


def _hours(work: float, slow: float, fast: float) -> Between:
    return Between(work / fast / _HOUR, work / slow / _HOUR)


def _usd(gpu_hours: Between, spec: ScaleSpec) -> Between:
    price = spec.usd_per_gpu_hour
    return Between(gpu_hours.low * price.low, gpu_hours.high * price.high)
