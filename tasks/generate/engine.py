"""What an engine is: something that answers batches of rendered prompts. The step does not know which one it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.target.rendering import RenderedPrompt


@dataclass(frozen=True)
class Sampling:
    """How to sample; `temperature` 0 is greedy."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class Answer:
    """What came back, as the engine counted it; the end id, if any, is the last of `output_ids` and counted."""

    prompt_id: str
    output_ids: list[int]
    text: str  # without the ids that a server strips
    finish_reason: str  # "stop" or "length"
    max_tokens: int
    prompt_tokens: int
    completion_tokens: int


class Engine(Protocol):
    """Answers batches; safe to call from several threads."""

    name: str
    model: str

    def generate(
        self, batch: Sequence[RenderedPrompt], sampling: Sampling, report: Callable[[int], None]
    ) -> list[Answer]:
        """One answer per prompt, in order; `report` is told how many answers ended, as they do.

        Raises:
            EngineError: the engine failed, or answered something that cannot be used.
        """
        ...
