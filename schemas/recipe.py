"""The recipe: the one parameter of every flow. The YAML files in deployments/recipes and the run form are this model.

Unknown keys, impossible values and contradictions are errors that name the field. It holds no secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from schemas.errors import RecipeError
from schemas.extraction import ExtractionSpec
from schemas.generation import GenerationSpec
from schemas.scale import ScaleSpec
from schemas.sections import (
    AuditSpec,
    BenchmarkSpec,
    ComputeSpec,
    CorpusSpec,
    DatasetSpec,
    DraftSpec,
    ExportSpec,
    ReconstructionSpec,
    Section,
    TargetSpec,
    TrainingSpec,
    VocabularySpec,
)

_FEWEST_LAYERS = 7  # for which [1, L//2-1, L-4] are three layers in order


class Recipe(Section):
    """Everything a run of eyas depends on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", description="Names the run, its reports and its artifacts.")
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of everything that is drawn.")
    target: TargetSpec
    datasets: list[DatasetSpec] = Field(min_length=1, description="Prompt sources, training and benchmark.")
    generation: GenerationSpec = GenerationSpec()
    reconstruction: ReconstructionSpec = ReconstructionSpec()
    audit: AuditSpec = AuditSpec()
    corpus: CorpusSpec = CorpusSpec()
    vocabulary: VocabularySpec = VocabularySpec()
    extraction: ExtractionSpec = ExtractionSpec()
    draft: DraftSpec = DraftSpec()
    training: TrainingSpec = TrainingSpec()
    export: ExportSpec = ExportSpec()
    benchmark: BenchmarkSpec = BenchmarkSpec()
    compute: ComputeSpec = ComputeSpec()
    scale: ScaleSpec | None = Field(
        default=None, description="Figures of other machines: a dry run then plans from these, and fetches nothing."
    )

    @model_validator(mode="after")
    def _no_contradictions(self) -> Recipe:
        names = [dataset.name for dataset in self.datasets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"datasets: the name {twice[0]!r} is used twice; give each dataset its own name")
        splits = {dataset.split for dataset in self.datasets}
        for split in ("train", "benchmark"):
            if split not in splits:
                raise ValueError(f"datasets: none has split: {split}; add one")
        if (layers := self.extraction.aux_layers) and (
            len(layers) != 3 or sorted(set(layers)) != layers or layers[0] < 0
        ):
            raise ValueError(
                f"extraction.aux_layers: {layers} must be three different 0-based layers in ascending order, or empty"
            )
        if self.draft.num_attention_heads % max(self.draft.num_key_value_heads, 1):
            raise ValueError("draft.num_attention_heads must be a multiple of draft.num_key_value_heads")
        if len(set(self.benchmark.temperatures)) != len(self.benchmark.temperatures):
            raise ValueError("benchmark.temperatures: a temperature is listed twice")
        if len(set(self.benchmark.baselines)) != len(self.benchmark.baselines):
            raise ValueError("benchmark.baselines: a baseline is listed twice")
        longer = self.generation.regenerate_tokens
        if longer and longer <= self.generation.max_tokens:
            raise ValueError(
                f"generation.regenerate_tokens is {longer}; it must be more than generation.max_tokens "
                f"{self.generation.max_tokens}, or 0"
            )
        most = max(self.generation.max_tokens, longer)
        if self.corpus.max_length <= most:
            raise ValueError(
                f"corpus.max_length is {self.corpus.max_length}, so an answer of "
                f"{most} tokens would never fit with its prompt; raise the one or lower the other"
            )
        return self

    def fingerprint(self) -> str:
        """Hex SHA-256 of the recipe's canonical JSON."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def check_target(self, facts: Mapping[str, Any]) -> None:
        """Refuse a recipe that contradicts the target, before anything is spent on it.

        Args:
            facts: the target's vocab_size, num_layers, context, num_attention_heads and num_key_value_heads.

        Raises:
            RecipeError: names the field and what would fit.
        """
        vocab_size, layers, context = facts["vocab_size"], facts["num_layers"], facts["context"]
        if self.vocabulary.size > vocab_size:
            raise RecipeError(
                f"vocabulary.size is {self.vocabulary.size}, the target has {vocab_size} tokens; "
                f"use at most {vocab_size}"
            )
        if self.extraction.aux_layers and self.extraction.aux_layers[-1] >= layers - 1:
            raise RecipeError(
                f"extraction.aux_layers names layer {self.extraction.aux_layers[-1]}, the target's last layer is "
                f"{layers - 1}, whose output is the teacher; use layers below it"
            )
        if not self.extraction.aux_layers and layers < _FEWEST_LAYERS:
            raise RecipeError(
                f"extraction.aux_layers is empty, and its default [1, L//2-1, L-4] is not three layers of a target "
                f"with {layers}; name three"
            )
        for field, limit in self._answer_limits().items():
            if limit >= context:
                raise RecipeError(
                    f"generation.{field} is {limit}, the target's context is {context}; leave room for a prompt"
                )
        if self.benchmark.max_tokens + self.benchmark.chain >= context:
            raise RecipeError(
                f"benchmark.max_tokens is {self.benchmark.max_tokens} and benchmark.chain {self.benchmark.chain}, "
                f"the target's context is {context}; leave room for a prompt"
            )
        if self.draft.hidden_size > facts.get("hidden_size", self.draft.hidden_size):
            raise RecipeError(
                f"draft.hidden_size is {self.draft.hidden_size}, the target's is {facts['hidden_size']}; a draft is at "
                "most as wide as its target"
            )
        heads = self.draft.num_attention_heads or facts["num_attention_heads"]
        kv_heads = self.draft.num_key_value_heads or min(facts["num_key_value_heads"], heads)
        if heads % kv_heads:
            raise RecipeError(
                f"the draft would have {heads} query heads, no multiple of its {kv_heads} key-value heads; "
                "set draft.num_attention_heads and draft.num_key_value_heads"
            )

    def _answer_limits(self) -> dict[str, int]:
        """Most tokens of an answer, by the field that says so."""
        generation = self.generation
        if not generation.is_served:
            return {"max_tokens": generation.max_tokens, "regenerate_tokens": generation.regenerate_tokens}
        used = {dataset.partition for dataset in self.datasets if dataset.split == "train"}
        return {f"serving.{name}.max_tokens": getattr(generation.serving, name).max_tokens for name in sorted(used)}

    def check_prompts(self, train: int) -> None:
        """Refuse a recipe that holds out all of its training prompts.

        Raises:
            RecipeError: names the field and what would fit.
        """
        if self.corpus.heldout >= train:
            raise RecipeError(
                f"corpus.heldout is {self.corpus.heldout}, and there are {train} training prompts; "
                f"use at most {max(train - 1, 0)}, or give more prompts"
            )


def load_recipe(path: Path) -> Recipe:
    """Read a recipe from a YAML file.

    Raises:
        RecipeError: the file is missing or not YAML, or a field is unknown, impossible or contradicts another.
    """
    try:
        return Recipe.model_validate(read_mapping(path))
    except ValidationError as exc:
        raise RecipeError(f"the recipe {path} cannot be used:\n{explain(exc, Recipe)}") from exc


def read_mapping(path: Path) -> dict[str, Any]:
    """The fields of a YAML file.

    Raises:
        RecipeError: the file is missing, not YAML, or no mapping.
    """
    try:
        content: Any = yaml.load(path.read_bytes(), Loader=_OnceLoader)
    except OSError as exc:
        raise RecipeError(f"the recipe {path} cannot be read: {exc.strerror}") from exc
    except yaml.YAMLError as exc:
        raise RecipeError(f"the recipe {path} is not YAML: {exc}") from exc
    if not isinstance(content, dict):
        raise RecipeError(f"the recipe {path} must be a mapping of fields, it is {type(content).__name__}")
    return content


def explain(error: ValidationError, model: type[Section]) -> str:
    """One line per fault of a recipe: the field as it stands in the YAML, what is wrong, and what would be right."""
    lines = []
    for fault in error.errors():
        field = ".".join(str(part) for part in fault["loc"]) or "recipe"
        if fault["type"] == "extra_forbidden":
            owner = _section_at(model, fault["loc"][:-1])
            known = f"; known fields: {', '.join(owner.model_fields)}" if owner else ""
            lines.append(f"  {field}: unknown field{known}")
        elif fault["type"] == "missing":
            lines.append(f"  {field}: is missing; it must be given")
        else:
            lines.append(f"  {field}: {fault['msg'].removeprefix('Value error, ')} (given: {fault['input']!r:.80})")
    return "\n".join(lines)


class _OnceLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key may stand only once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _section_at(model: type[Section], location: tuple[int | str, ...]) -> type[Section] | None:
    section: type[Section] | None = model
    for part in location:
        if isinstance(part, int) or section is None:
            continue
        kind: Any = section.model_fields[part].annotation if part in section.model_fields else None
        kind = next(iter(get_args(kind)), kind)  # of a list, or of what may be left out
        section = kind if isinstance(kind, type) and issubclass(kind, Section) else None
    return section
