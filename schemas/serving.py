"""The recipe's section on servers: where answers are asked for over HTTP, at what cost, and with what manners."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from schemas.sections import BESIDE, Section

Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown"
]

LaunchedEngine = Literal["sglang", "vllm", "llamacpp"]
_OWN_FLAGS = {
    "--model": "the target is served",
    "--model-path": "the target is served",
    "--served-model-name": "it is chosen by eyas",
    "--host": "it is chosen by eyas",
    "--port": "give launch.port",
    "--dtype": "give launch.dtype",
    "--quantization": "give launch.quantization",
}
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)S?$", re.IGNORECASE)


class LaunchSpec(Section):
    """A server that is started for the work, and stopped after it."""

    engine: LaunchedEngine = Field(description="Which engine; `make engines` installs it, or you do.")
    dtype: str = Field(
        default="auto",
        pattern=r"^[a-z0-9]+$",
        description="Type that the engine computes with; auto is the weights' own.",
    )
    quantization: str = Field(
        default="", pattern=r"^[a-z0-9_-]*$", description="The engine's name of a quantization; empty is none."
    )
    flags: list[str] = Field(
        default_factory=list,
        description="Further arguments of its command, e.g. [--tensor-parallel-size, '2'].",
        json_schema_extra=BESIDE,
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="Further variables of its environment; no secrets.", json_schema_extra=BESIDE
    )
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Where it listens on this machine; 0 takes a free port.",
        json_schema_extra=BESIDE,
    )
    start_seconds: float = Field(
        default=1800, gt=0, description="Longest time until it is ready.", json_schema_extra=BESIDE
    )

    @model_validator(mode="after")
    def _nothing_twice(self) -> LaunchSpec:
        for flag in self.flags:
            if why := _OWN_FLAGS.get(flag.split("=", 1)[0]):
                raise ValueError(f"launch.flags has {flag}: {why}")
        if secret := next((name for name in self.environment if _SECRET.search(name)), None):
            raise ValueError(f"launch.environment has {secret}: no secret may stand in a recipe")
        return self


class EndpointSpec(Section):
    """One server that answers."""

    url: str = Field(pattern=r"^https?://[^\s]+$", description="Base URL, e.g. http://127.0.0.1:30000 or .../v1.")
    weight: float = Field(default=1, gt=0, description="Share of the requests, relative to the other endpoints.")
    api_key_env: str = Field(
        default="", pattern=r"^[A-Za-z_]*[A-Za-z0-9_]*$", description="Environment variable that holds the API key."
    )
    api_key_block: str = Field(
        default="", description="Prefect Secret block that holds the API key, if the variable is not set."
    )


class PartitionSpec(Section):
    """How one kind of prompts is run."""

    concurrency: int = Field(ge=1, le=100_000, description="Most requests in flight.")
    max_tokens: int = Field(ge=1, le=1_000_000, description="Most new tokens per answer.")


class BudgetSpec(Section):
    """What may be spent. A worst case is reserved before a request is sent, so no cap is ever passed; 0 is no cap."""

    usd: float = Field(default=0, ge=0, description="Dollars for the run.")
    tokens: int = Field(default=0, ge=0, description="Prompt and completion tokens for the run.")
    dataset_usd: dict[str, float] = Field(default_factory=dict, description="Dollars by dataset name.")
    dataset_tokens: dict[str, int] = Field(default_factory=dict, description="Tokens by dataset name.")
    pilot_prompts: int = Field(
        default=32,
        ge=2,
        le=10_000,
        description="Prompts per dataset that are asked first where answers cost money, to forecast what the rest will "
        "cost; their answers are kept.",
    )
    approve_usd: float = Field(
        default=0,
        ge=0,
        description="Dollars, pilot included, that the prompts of one recipe may cost without a person's approval; "
        "above, and with 0, a person is asked after the pilot.",
    )
    at_cap: Literal["finish", "cancel"] = Field(
        default="finish", description="What becomes of requests in flight when a cap is reached."
    )


class PriceSpec(Section):
    """What tokens cost where the server does not say; OpenRouter's own prices are read from it."""

    prompt_usd_per_million: float = Field(default=0, ge=0, description="Dollars per million prompt tokens.")
    completion_usd_per_million: float = Field(default=0, ge=0, description="Dollars per million completion tokens.")


class ProviderQuantization(Section):
    """An endpoint of a provider that is not wanted."""

    provider: str = Field(min_length=1, description="Provider name as OpenRouter gives it, e.g. Fireworks.")
    quantization: Quantization = Field(description="Its quantization; fp4 also means nvfp4 and mxfp4.")


class ProviderRules(Section):
    """Who may answer, for OpenRouter."""

    only: list[str] = Field(default_factory=list, description="Providers that may answer; empty allows all.")
    order: list[str] = Field(default_factory=list, description="Providers in the order in which to try them.")
    ignore: list[str] = Field(default_factory=list, description="Providers that may not answer.")
    quantizations: list[Quantization] = Field(
        default_factory=list, description="Quantizations allowed; empty allows all."
    )
    exclude: list[ProviderQuantization] = Field(
        default_factory=list, description="Provider and quantization that may not answer together."
    )
    allow_fallbacks: bool = Field(default=False, description="Let OpenRouter take another provider when one fails.")
    require_parameters: bool = Field(default=True, description="Only providers that honour every parameter.")
    data_collection: Literal["allow", "deny"] = Field(default="deny", description="Whether providers may keep prompts.")
    distillable_only: bool = Field(default=False, description="Only models whose terms allow training on answers.")
    max_unlisted: int = Field(
        default=5, ge=0, description="Answers from others than asked for that are quarantined before the run stops."
    )


class ServingSpec(Section):
    """Requests to servers: every engine but transformers."""

    endpoints: list[EndpointSpec] = Field(
        default_factory=list, description="Servers that answer.", json_schema_extra=BESIDE
    )
    model: str = Field(default="", description="Name of the model at the server; empty takes the only one it has.")
    api: Literal["chat", "completions"] = Field(
        default="chat", description="Chat takes messages, completions token ids; SGLang's own API takes ids always."
    )
    stream: bool = Field(default=False, description="Read answers as they come.", json_schema_extra=BESIDE)
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Further fields for every request.")
    short: PartitionSpec = Field(
        default=PartitionSpec(concurrency=2000, max_tokens=10_240),
        description="Datasets with partition: short.",
    )
    long: PartitionSpec = Field(
        default=PartitionSpec(concurrency=500, max_tokens=16_384),
        description="Datasets with partition: long; they run last.",
    )
    retries: int = Field(default=8, ge=0, le=100, description="Attempts after the first.", json_schema_extra=BESIDE)
    backoff_seconds: float = Field(
        default=1, gt=0, description="First wait before a retry; doubles, with jitter.", json_schema_extra=BESIDE
    )
    longest_backoff_seconds: float = Field(
        default=60, gt=0, description="Longest such wait; Retry-After may ask for more.", json_schema_extra=BESIDE
    )
    deadline_seconds: float = Field(
        default=3600, gt=0, description="Longest time for one attempt.", json_schema_extra=BESIDE
    )
    idle_seconds: float = Field(
        default=300, gt=0, description="Longest silence of a stream, or before an answer.", json_schema_extra=BESIDE
    )
    grace_seconds: float = Field(
        default=30, ge=0, description="Time for answers in flight when the run is stopped.", json_schema_extra=BESIDE
    )
    budget: BudgetSpec = Field(default=BudgetSpec(), json_schema_extra=BESIDE)
    price: PriceSpec = Field(default=PriceSpec(), json_schema_extra=BESIDE)
    provider: ProviderRules = Field(default=ProviderRules())
