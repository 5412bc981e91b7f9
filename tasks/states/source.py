"""What gives hidden states: ids in, the states of each sequence out as they come. Engines differ behind this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from tasks.target.layers import default_aux_layers

AUX_STATES = 3


class Asked(NamedTuple):
    """A sequence whose states are wanted."""

    name: str  # for messages
    ids: Sequence[int]
    taught_from: int  # first position whose last state, or likeliest tokens, are wanted


class TopTokens(NamedTuple):
    """The target's likeliest next tokens, best first."""

    ids: Tensor  # int32 (rows, k)
    log_probabilities: Tensor  # float32 (rows, k), over the whole vocabulary


class Captured(NamedTuple):
    """The states of one sequence, on the CPU."""

    place: int  # in what was asked for
    aux: Tensor  # bfloat16 (length, 3·hidden), outputs of the auxiliary layers
    last: Tensor | None  # bfloat16 (length - taught_from, hidden), after the target's final norm
    top: TopTokens | None  # of the same positions, in place of `last`


class StateSource(Protocol):
    """One engine with the target in it; `states` and `greedy` may be called from several threads."""

    def states(self, sequences: Sequence[Asked]) -> Iterator[list[Captured]]:
        """The states of all sequences, some at a time and in any order; no more than a batch is held."""
        ...

    def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The engine's own answers at temperature 0, as ids."""
        ...


def aux_layers(spec: ExtractionSpec, num_layers: int) -> list[int]:
    """The layers whose output is captured, 0-based."""
    return spec.aux_layers or list(default_aux_layers(num_layers))


def refuse_unsound(asked: Asked, found: Captured) -> None:
    """Refuse states that are not one per id, or not finite.

    Raises:
        ProbeFailed: names the sequence.
    """
    taught = found.last if found.top is None else found.top.log_probabilities
    parts = (("auxiliary", found.aux, len(asked.ids)), ("last", taught, len(asked.ids) - asked.taught_from))
    for name, states, wanted in parts:
        if states is None or len(states) != wanted:
            count = 0 if states is None else len(states)
            raise ProbeFailed(
                f"sequence {asked.name} has {len(asked.ids)} ids, of which {wanted} need {name} states, but {count} "
                f"{name} states came back"
            )
        if not bool(torch.isfinite(states).all()):
            row = int(torch.nonzero(~torch.isfinite(states).all(-1))[0, 0])
            raise ProbeFailed(
                f"sequence {asked.name}: the {name} state at position {row + len(asked.ids) - wanted} is not finite; "
                "set target.dtype to float32, or check the target's weights"
            )
