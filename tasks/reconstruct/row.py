"""One answer on its way through reconstruction: what was returned, and what has been found out so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from schemas.ragged import Ids, Ragged
from schemas.sections import ReconstructionSpec
from tasks.formats.codec import Codec
from tasks.formats.format import Fault, Opening, Reading, Said, TokenFormat

# A request, canonical JSON, as the ids that the server saw; None if it has no messages.
Render = Callable[[str], list[int] | None]
# A request as the least that its prompt can end with.
StandIn = Callable[[str], Ids]


@dataclass(frozen=True)
class Means:
    """What answers are judged with."""

    token_format: TokenFormat
    codec: Codec
    spec: ReconstructionSpec
    render: Render | None = None  # for answers that came without prompt ids
    stand_in: StandIn | None = None  # for prompts that can be neither had nor rendered; None: such answers go


class Candidate(NamedTuple):
    """Ids that an answer may have been sampled as."""

    ids: Ids
    reading: Reading
    ended: bool  # the last id is an end id


@dataclass(slots=True)
class Row:
    """An answer. A row that has a fault is not looked at any more."""

    request: str
    prompt: Ids | None
    output: Ids | None
    reasoning: str | None
    content: str | None
    tool_calls: str | None
    finish_reason: str | None
    max_tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    provider: str

    fault: Fault | None = None
    finish: str = ""  # in our words
    opening: Opening = "unsaid"
    candidates: list[Candidate] = field(default_factory=list)
    completion: Ids | None = None  # the ids, once there is no doubt
    answer_text: str | None = None  # what they must decode to
    billed: int | None = None
    delta: int | None = None  # rebuilt minus billed
    delta_class: str | None = None

    @property
    def has_text(self) -> bool:
        """The server sent the answer, or a part of it, as text."""
        return self.reasoning is not None or self.content is not None

    def said(self, ended: bool) -> Said:
        """The answer as text."""
        return Said(self.reasoning, self.content, ended)

    def refuse(self, reason: str, detail: str, delta_class: str | None = None) -> None:
        """Give the row a fault, and perhaps the class that explains its count."""
        self.fault = Fault(reason, detail)
        self.delta_class = delta_class or self.delta_class


def rows_of(answers: pa.Table) -> list[Row]:
    """The answers of a table (contract ANSWERS)."""
    columns = [
        answers["request"].to_pylist(),
        lists_of(answers["prompt_ids"]),
        lists_of(answers["output_ids"]),
        *(
            answers[name].to_pylist()
            for name in (
                "reasoning",
                "content",
                "tool_calls",
                "finish_reason",
                "max_tokens",
                "prompt_tokens",
                "completion_tokens",
                "reasoning_tokens",
            )
        ),
        providers_of(answers),
    ]
    return [Row(*values) for values in zip(*columns, strict=True)]


def providers_of(answers: pa.Table) -> list[str]:
    """Who counted each answer: the provider, or the engine where there is none between."""
    pairs = zip(answers["provider"].to_pylist(), answers["engine"].to_pylist(), strict=True)
    return [provider or engine for provider, engine in pairs]


def lists_of(column: pa.ChunkedArray) -> list[Ids | None]:
    """The ids of every row, as views; None where the cell is null."""
    array = column.combine_chunks()
    rows = iter(Ragged.of(array.drop_null()).rows())
    return [next(rows) if there else None for there in array.is_valid().to_pylist()]
