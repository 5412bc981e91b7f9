"""The recipe's section on machines that are not this one: what the forecast of a large run assumes, and from where.

Nothing here changes a result. A dry run prints every assumption with its source, so that a person can check the sums.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from schemas.sections import Section


class Range(Section):
    """A figure between two ends, and where it comes from."""

    low: float = Field(gt=0, description="The lower end.")
    high: float = Field(gt=0, description="The upper end; the same as `low` for a figure that is known.")
    source: str = Field(min_length=1, description="Who measured it, or that it is assumed.")

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, which is above high {self.high}")
        return self


class DatasetSize(Section):
    """What a dataset holds, as far as the recipe takes it."""

    conversations: int = Field(default=0, ge=0, description="Conversations; 0 takes the dataset's limit.")
    turns: float = Field(default=1, ge=1, description="Answers per conversation, on average.")
    prompt_tokens: float = Field(gt=0, description="New prompt tokens per turn, tools and system text in the first.")


class ScaleSpec(Section):
    """Sizes of datasets and figures of other machines, for the forecast of a dry run."""

    target: str = Field(
        min_length=1,
        description="JSON file with the target's sizes, as seen from the working folder, or a model's folder, of which "
        "config.json is read.",
    )
    datasets: dict[str, DatasetSize] = Field(description="Size of each training dataset, by its name.")
    sizes_source: str = Field(min_length=1, description="Where these sizes come from.")
    answer_tokens: Range = Field(description="Tokens per answer; the plan is made for both ends.")
    kept_share: Range = Field(description="Share of an answer that stays in the next turns' prompts.")
    generation_tokens_per_second: Range = Field(description="Answer tokens of all servers together.")
    extraction_tokens_per_second: Range = Field(description="Tokens of all servers together, with hidden states.")
    extraction_gpus: int = Field(default=8, ge=1, description="GPUs that extract.")
    training_gpus: int = Field(default=8, ge=1, description="GPUs that train.")
    training_teraflops_per_gpu: Range = Field(description="Useful 10^12 operations per second and GPU in training.")
    usd_per_gpu_hour: Range = Field(description="What a GPU costs.")
    compared_with: dict[str, str] = Field(
        default_factory=dict, description="Figures of other runs, printed beside the plan, by their source."
    )

    @model_validator(mode="after")
    def _two_ends(self) -> ScaleSpec:
        if self.kept_share.high > 1:
            raise ValueError(f"scale.kept_share.high is {self.kept_share.high}, and a share is at most 1")
        return self
