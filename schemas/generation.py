"""The recipe's section on answers: which engine gives them, and how it samples. Servers have schemas/serving.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.sections import ADDED, BESIDE, Section, Temperature
from schemas.serving import LaunchSpec, ServingSpec


class GenerationSpec(Section):
    """How the target answers the training prompts."""

    engine: Literal["transformers", "sglang", "vllm", "openai", "openrouter"] = Field(
        default="transformers", description="Where answers are generated: in this process, or by a server (serving)."
    )
    max_tokens: int = Field(
        default=128,
        ge=1,
        le=1_000_000,
        description="Most new tokens per answer of transformers; servers have the limits of serving.short and .long.",
    )
    temperature: Temperature = Field(default=0.7, description="0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus mass; 1 keeps all.")
    batch_size: int = Field(
        default=64, ge=1, le=4096, description="Answers generated together; part of the result's identity."
    )
    shard_prompts: int = Field(
        default=128, ge=1, description="Prompts per task run and per stored shard.", json_schema_extra=BESIDE
    )
    regenerate_tokens: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Answers cut at max_tokens are generated again with this limit; 0 leaves them as they are.",
    )
    serving: ServingSpec = ServingSpec()
    launch: LaunchSpec | None = Field(
        default=None,
        description="Start a server with the target for the answers, and stop it after; in the place of "
        "serving.endpoints. Its name for the target is chosen.",
        json_schema_extra=ADDED,
    )

    @property
    def is_served(self) -> bool:
        """Whether servers answer, over HTTP."""
        return self.engine != "transformers"

    @property
    def is_metered(self) -> bool:
        """Whether answers cost money."""
        price = self.serving.price
        return self.engine == "openrouter" or (
            self.is_served and max(price.prompt_usd_per_million, price.completion_usd_per_million) > 0
        )

    @model_validator(mode="after")
    def _no_contradictions(self) -> GenerationSpec:
        serving = self.serving
        if self.launch and self.launch.engine != self.engine:
            raise ValueError(f"engine is {self.engine}, but launch.engine is {self.launch.engine}: make them the same")
        if self.launch and (serving.endpoints or serving.model):
            raise ValueError("serving.endpoints and serving.model are for servers that run; leave them out with launch")
        if self.is_served and not serving.endpoints and not self.launch:
            raise ValueError(f"engine {self.engine} needs a server: give serving.endpoints, or launch")
        if self.engine == "openrouter" and not serving.model:
            raise ValueError("engine openrouter needs serving.model, such as author/model")
        if self.is_served and self.regenerate_tokens:
            raise ValueError(f"regenerate_tokens is for engine transformers; give {self.engine} a larger serving limit")
        return self
