"""The recipe's section on hidden states: which are captured, by what, and how they are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.sections import ADDED, BESIDE, Section
from schemas.serving import LaunchSpec

StateEngine = Literal["transformers", "vllm", "sglang"]
StateStorage = Literal["bfloat16", "float8"]


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
    engine: StateEngine = Field(
        default="transformers",
        description="What computes the states: transformers in this process, or a server that gives them.",
        json_schema_extra=ADDED,
    )
    endpoint: str = Field(
        default="",
        pattern=r"^(https?://[^\s/]+)?$",
        description="A running server, e.g. http://127.0.0.1:30000; a vLLM one must write its files to a disk that is "
        "mounted here under the same path.",
        json_schema_extra=BESIDE,
    )
    launch: LaunchSpec | None = Field(
        default=None,
        description="A server that is started for extraction, in place of `endpoint`; what makes it give states is "
        "added to its flags.",
        json_schema_extra=ADDED,
    )
    concurrency: int = Field(default=8, ge=1, le=1024, description="Requests in flight.", json_schema_extra=BESIDE)
    reference: Literal["target", "none"] = Field(
        default="target",
        description="What the probe holds a server's states against: the target in this process, or nothing, where "
        "its weights do not fit here.",
        json_schema_extra=ADDED,
    )
    storage: StateStorage = Field(
        default="bfloat16",
        description="How a state is stored; float8 (e4m3 with a scale per state) takes half of the bytes.",
        json_schema_extra=ADDED,
    )
    teacher_top_k: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Store the target's likeliest tokens and their log-probabilities in place of the last state; 0 "
        "stores the state.",
        json_schema_extra=ADDED,
    )
    prompt_window: int = Field(
        default=0,
        ge=0,
        description="Prompt tokens before the answer whose states are kept, for the draft to attend to; 0 keeps all.",
        json_schema_extra=ADDED,
    )
    online: bool = Field(
        default=False,
        description="Store nothing: training asks for the states of each batch when it needs them.",
        json_schema_extra=ADDED,
    )

    @property
    def is_served(self) -> bool:
        """Whether the states come from a server."""
        return self.engine != "transformers"

    @model_validator(mode="after")
    def _possible(self) -> ExtractionSpec:
        if self.is_served and bool(self.endpoint) == bool(self.launch):
            raise ValueError(f"extraction: engine {self.engine} needs either an endpoint that runs or a launch")
        if not self.is_served and (self.endpoint or self.launch):
            raise ValueError("extraction: engine transformers asks no server: give engine, or no endpoint and launch")
        if self.launch and self.launch.engine != self.engine:
            raise ValueError(f"extraction.launch.engine is {self.launch.engine}, and extraction.engine {self.engine}")
        if self.engine == "sglang" and not self.teacher_top_k:
            raise ValueError(
                "extraction.teacher_top_k is 0: SGLang gives the auxiliary states without the last one, so the "
                "teacher must be its likeliest tokens; give e.g. 64"
            )
        return self
