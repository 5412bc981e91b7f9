"""What training sees of one conversation, and the parts of the target that teach. Plain tensors: no model, no files."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.train.top_tokens import TopRows

_SHOWN = 8  # positions that a message names


@dataclass(frozen=True)
class Sequence:
    """Ids and hidden states of one prompt with its answer.

    Row t of the draft reads `aux[t]` and token t+1 and guesses token t+2; the target's own scores for token t+2 come
    from the last state of position t+1.
    """

    token_ids: Tensor  # int64 (length,)
    aux: Tensor  # (length, 3·target_hidden), output of the three auxiliary layers
    last: Tensor  # (length - last_from, target_hidden), after the target's final norm
    last_from: int
    prompt_length: int
    name: str = ""  # its id in the corpus, for messages and figures
    top: TopRows | None = None  # of the same positions as `last`, in whose place it teaches

    @property
    def first_served(self) -> int:
        """The first row that an engine drafts from: it has read the prompt and the answer's first token."""
        return self.prompt_length - 1

    @property
    def served(self) -> int:
        """Number of rows from `first_served` on whose next guess lies inside the sequence; 0 for a one-token answer."""
        return max(len(self.token_ids) - 1 - self.prompt_length, 0)

    def teacher_states(self) -> Tensor:
        """The last states that score what the served rows guess, (served, target_hidden)."""
        start = self.prompt_length - self.last_from
        return self.last[start : start + self.served]

    def teacher(self, dtype: torch.dtype) -> Tensor | TopRows:
        """What teaches the served rows: their last states as this type, or the target's likeliest tokens."""
        if self.top is None:
            return self.teacher_states().to(dtype)
        start = self.prompt_length - self.last_from
        return self.top[start : start + self.served]

    def to(self, device: torch.device) -> Sequence:
        """The same on another device."""
        if self.aux.device == device:
            return self
        top = self.top.to(device) if self.top else None
        moved = (tensor.to(device, non_blocking=True) for tensor in (self.token_ids, self.aux, self.last))
        return Sequence(*moved, last_from=self.last_from, prompt_length=self.prompt_length, name=self.name, top=top)

    def not_finite(self) -> str:
        """Which positions hold a state that is not finite; empty if there is none."""
        found = []
        for name, states, first in (("auxiliary", self.aux, 0), ("last", self.last, self.last_from)):
            if states.sum(dtype=torch.float32).isfinite():  # ten times as fast as a look at each value
                continue
            bad = (~states.isfinite().all(dim=-1)).nonzero()[:, 0] + first
            if len(bad):
                shown = ", ".join(map(str, bad[:_SHOWN].tolist())) + (", ..." if len(bad) > _SHOWN else "")
                found.append(f"{name} states of positions {shown}")
        return " and ".join(found)


@dataclass(frozen=True)
class TeacherParts:
    """The two frozen matrices of the target that training needs, float32."""

    embedding: Tensor  # (vocab, hidden)
    head: Tensor  # (vocab, target_hidden)
