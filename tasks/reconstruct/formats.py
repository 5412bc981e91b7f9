"""Token formats: what the ids of a whole answer look like for a family of models.

A format only judges; it never adds, drops or changes an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from schemas.ragged import Ids


class Fault(NamedTuple):
    """Why an answer is not one that the model can have given: a class that is counted, and the particulars."""

    reason: str
    detail: str


class TokenFormat(Protocol):
    """The rules of one family of models."""

    def fault(self, prompt_ids: Ids, output_ids: Ids, finish_reason: str) -> Fault | None:
        """What is wrong with an answer's ids, or None if nothing is."""
        ...


@dataclass(frozen=True)
class PlainFormat:
    """Any chat template in which an answer is free text and one of `end_ids`.

    Limits: it knows neither thinking markers nor tool sections, so it cannot tell a whole one from a torn one; and it
    does not rebuild ids from text. It holds only for engines that return the sampled ids.
    """

    end_ids: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(cls, target_facts: Mapping[str, Any]) -> PlainFormat:
        """The format of a prepared target."""
        return cls(tuple(target_facts["eos_ids"]), target_facts["vocab_size"])

    def fault(self, prompt_ids: Ids, output_ids: Ids, finish_reason: str) -> Fault | None:
        """What is wrong with an answer's ids, or None if nothing is."""
        if not len(output_ids):
            return Fault("empty_completion", "the engine returned no id")
        for name, ids in (("prompt", prompt_ids), ("completion", output_ids)):
            outside = ids[(ids < 0) | (ids >= self.vocab_size)]
            if len(outside):
                return Fault(
                    "id_out_of_range", f"the {name} has id {outside[0]}; the target's are 0 to {self.vocab_size - 1}"
                )
        ends = np.flatnonzero(np.isin(output_ids, self.end_ids))
        last = len(output_ids) - 1
        if len(ends) and ends[0] < last:
            return Fault(
                "end_id_inside", f"end id {output_ids[ends[0]]} is number {ends[0] + 1} of {last + 1} completion ids"
            )
        if finish_reason == "stop" and not len(ends):
            return Fault("end_id_missing", f"finished by stop, but the last id is {output_ids[-1]}")
        if finish_reason == "length" and len(ends):
            return Fault("end_id_after_cut", f"cut by length, but the last id is the end id {output_ids[-1]}")
        return None
