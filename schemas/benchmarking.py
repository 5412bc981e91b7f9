"""The recipe of `benchmark_draft`: which draft and target, in which engines, with which settings, against what."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from schemas.errors import RecipeError
from schemas.recipe import explain, read_mapping
from schemas.sections import BESIDE, ComputeSpec, DatasetSpec, Section, TargetSpec, Temperature
from schemas.serving import LaunchSpec

EngineName = Literal["transformers", "vllm", "sglang", "llamacpp"]


class DraftSource(Section):
    """The draft that is measured."""

    source: str = Field(
        min_length=1,
        description="Folder with config.json and model.safetensors, artifact:KEY (also its beginning) of an exported "
        "draft in the store, or a Hugging Face id.",
    )
    revision: str = Field(default="", description="Revision of a Hugging Face id; empty takes the default branch.")


class SpeculationSpec(Section):
    """How the draft is used, in the terms of SGLang: steps / top-k / draft tokens."""

    steps: int = Field(default=3, ge=1, le=16, description="Draft steps per verify step.")
    top_k: int = Field(default=1, ge=1, le=16, description="Branches per draft step; 1 is a chain.")
    draft_tokens: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Tokens verified together, the last known one among them; 0 is steps + 1 of a chain.",
    )

    @model_validator(mode="after")
    def _fits(self) -> SpeculationSpec:
        if self.top_k == 1:
            if self.draft_tokens not in (0, self.steps + 1):
                raise ValueError(f"draft_tokens of a chain of {self.steps} is {self.steps + 1}; give that or 0")
            return self
        most = 1 + self.top_k + (self.steps - 1) * self.top_k**2
        if not 2 <= self.draft_tokens <= most:
            raise ValueError(f"draft_tokens of a tree with top_k {self.top_k} and {self.steps} steps is 2 to {most}")
        return self

    @property
    def verified(self) -> int:
        """Tokens verified together."""
        return self.draft_tokens or self.steps + 1

    @property
    def label(self) -> str:
        """Such as 3/1/4."""
        return f"{self.steps}/{self.top_k}/{self.verified}"


class EngineSpec(Section):
    """An engine in which the draft is measured: this process, running servers, or ones that are started here."""

    engine: EngineName = Field(description="transformers is eyas' own loop in this process.")
    url: str = Field(
        default="",
        pattern=r"^(https?://[^\s]+)?$",
        description="A running server with the draft; empty starts one (launch).",
    )
    plain_url: str = Field(
        default="", pattern=r"^(https?://[^\s]+)?$", description="A running server without any draft, beside url."
    )
    model: str = Field(default="", description="Name of the model at a running server; empty takes its only one.")
    launch: LaunchSpec | None = Field(
        default=None,
        description="How servers are started; empty starts them with eyas' flags.",
        json_schema_extra=BESIDE,
    )
    baselines: list[Literal["ngram"]] = Field(
        default_factory=list, description="What else drafts, where the engine has it.", json_schema_extra=BESIDE
    )
    trees: bool = Field(
        default=True, description="Also run speculation with top_k above 1; only transformers and sglang have it."
    )

    @model_validator(mode="after")
    def _no_contradictions(self) -> EngineSpec:
        if self.engine == "transformers" and (self.url or self.plain_url or self.launch):
            raise ValueError("transformers runs in this process: it has no url, plain_url or launch")
        if self.plain_url and not self.url:
            raise ValueError("plain_url is the partner of url: give both, or only url")
        if self.url and self.launch:
            raise ValueError("url names a running server, launch starts one: give one of them")
        if self.launch and self.launch.engine != self.engine:
            raise ValueError(f"launch.engine is {self.launch.engine}, the engine is {self.engine}")
        if self.url and self.baselines:
            raise ValueError("baselines need servers that are started here: give no url")
        return self

    @property
    def has_trees(self) -> bool:
        """Whether it can verify more than a chain."""
        return self.trees and self.engine in ("transformers", "sglang")


class MeasureSpec(Section):
    """What is measured in every engine."""

    speculation: list[SpeculationSpec] = Field(
        default=[SpeculationSpec()], min_length=1, description="Settings of the draft.", json_schema_extra=BESIDE
    )
    temperatures: list[Temperature] = Field(default=[0.0], min_length=1, description="0 is greedy.")
    concurrency: list[int] = Field(default=[1], min_length=1, description="Requests in flight, e.g. [1, 8, 32].")
    max_tokens: int = Field(default=256, ge=2, le=1_000_000, description="Most new tokens per answer.")
    without_draft: bool = Field(
        default=True, description="Also without a draft: for speed-up, and for token-for-token equality."
    )
    context_length: int = Field(
        default=0, ge=0, description="Tokens that servers make room for, and the draft must; 0 is the target's context."
    )
    context_edges: list[int] = Field(
        default=[512, 2048, 8192, 32768],
        description="Prompt lengths at which the buckets of context lengths begin.",
        json_schema_extra=BESIDE,
    )
    bootstrap: int = Field(
        default=2000, ge=100, description="Resamples for the 95 % intervals.", json_schema_extra=BESIDE
    )
    idle_seconds: float = Field(
        default=300, gt=0, description="Longest silence of a server in an answer.", json_schema_extra=BESIDE
    )
    repeat: int = Field(default=0, ge=0, description="Raise it to measure anew what was measured before.")

    @model_validator(mode="after")
    def _no_contradictions(self) -> MeasureSpec:
        for name in ("temperatures", "concurrency", "speculation"):
            values = getattr(self, name)
            if any(value in values[:place] for place, value in enumerate(values)):
                raise ValueError(f"{name}: a value is listed twice")
        if any(not 1 <= value <= 1024 for value in self.concurrency):
            raise ValueError("concurrency: each is 1 to 1024")
        return self


class LosslessSpec(Section):
    """Whether answers with the draft are those without it."""

    tie_tolerance: float = Field(
        default=0.02,
        ge=0,
        description="Scores of two tokens this near are a tie that rounding may decide (logits; bf16 needs about 0.2).",
        json_schema_extra=BESIDE,
    )
    samples: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Answers per short prompt for the test of distributions at temperatures above 0; 0 leaves it out.",
    )
    sampled_prompts: int = Field(default=4, ge=1, le=64, description="Short prompts of that test.")
    significance: float = Field(
        default=1e-4,
        gt=0,
        lt=1,
        description="Probability below which the test says that distributions differ.",
        json_schema_extra=BESIDE,
    )
    fail: bool = Field(default=True, description="A real difference fails the flow.", json_schema_extra=BESIDE)


class ParitySpec(Section):
    """How far engines may lie apart on the same prompts at temperature 0."""

    largest_gap: float = Field(
        default=0.05, ge=0, le=1, description="Largest relative gap of acceptance lengths minus 1, or of a position."
    )
    fail: bool = Field(default=True, description="A larger gap fails the flow.")


class BaselineSpec(Section):
    """An earlier benchmark that this one is held against."""

    artifact: str = Field(default="", description="Key, also its beginning, of a collect_benchmark artifact.")
    smallest_loss: float = Field(
        default=0.0, ge=0, description="Tokens per step by which it must be worse, beyond the interval, to count."
    )
    fail: bool = Field(default=False, description="A regression fails the flow.")


class BenchmarkRecipe(Section):
    """Everything a benchmark of a draft depends on."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="Names the run and its page.")
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of everything that is drawn.")
    target: TargetSpec
    draft: DraftSource
    datasets: list[DatasetSpec] = Field(min_length=1, description="Benchmark prompts; their split does not matter.")
    engines: list[EngineSpec] = Field(min_length=1, description="Where it is measured.")
    measure: MeasureSpec = MeasureSpec()
    lossless: LosslessSpec = LosslessSpec()
    parity: ParitySpec = ParitySpec()
    baseline: BaselineSpec = BaselineSpec()
    compute: ComputeSpec = ComputeSpec()

    @model_validator(mode="after")
    def _no_contradictions(self) -> BenchmarkRecipe:
        for what, names in (
            ("datasets", [d.name for d in self.datasets]),
            ("engines", [e.engine for e in self.engines]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what}: {twice[0]!r} is listed twice")
        return self

    @property
    def prompts(self) -> list[DatasetSpec]:
        """The datasets, all as benchmark prompts."""
        return [dataset.model_copy(update={"split": "benchmark"}) for dataset in self.datasets]

    def fingerprint(self) -> str:
        """Hex SHA-256 of the recipe's canonical JSON."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def load_benchmark_recipe(path: Path) -> BenchmarkRecipe:
    """Read a recipe from a YAML file.

    Raises:
        RecipeError: the file is missing or not YAML, or a field is unknown, impossible or contradicts another.
    """
    try:
        return BenchmarkRecipe.model_validate(read_mapping(path))
    except ValidationError as exc:
        raise RecipeError(f"the recipe {path} cannot be used:\n{explain(exc, BenchmarkRecipe)}") from exc
