"""The training-time test: the draft is trained on its own outputs, K steps deep, as an engine will run it.

Only rows that an engine drafts from ask anything; rows of the prompt give keys and values. Row t of step i is trained
iff tokens t+1 and t+2+i belong to the answer. Source: EAGLE-3, arXiv 2503.01840, section 3; that the mask follows the
guessed token is eyas's own, see SpecForge#885 for what goes wrong without it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasks.draft.linear import stack_rows
from tasks.draft.model import Eagle3Draft
from tasks.train.attention import attend
from tasks.train.fused_loss import Objective, StepTotals, fused_loss
from tasks.train.sequence import Sequence


@dataclass(frozen=True)
class TrainingTimeTest:
    """Unrolls a draft over sequences and compares it with the target."""

    embedding: Tensor  # (vocab, hidden), frozen
    objective: Objective
    aux_scale: Tensor  # (3·target_hidden,), factor of the auxiliary states
    steps: int
    decay: float
    bfloat16: bool = False  # autocast; the weights stay as they are

    def autocast(self) -> torch.autocast:
        """The context in which the draft computes."""
        return torch.autocast(self.embedding.device.type, torch.bfloat16, enabled=self.bfloat16)

    def counts(self, sequences: Many[Sequence]) -> list[int]:
        """Trained rows of each step."""
        return [sum(max(sequence.served - step, 0) for sequence in sequences) for step in range(self.steps)]

    def losses(self, draft: Eagle3Draft, sequences: Many[Sequence], counts: list[int] | None = None) -> StepTotals:
        """Unroll and compare.

        The loss is Σ decay^i · (mean loss of step i) / Σ decay^i; a step without rows adds nothing.

        Args:
            draft: the draft.
            sequences: a batch, or a part of it.
            counts: trained rows of each step in the whole batch, so that the losses of its parts add up.
        """
        factors = [self.decay**step for step in range(self.steps)]
        counts = counts or self.counts(sequences)
        weights = [f / sum(factors) / max(count, 1) for f, count in zip(factors, counts, strict=True)]
        dtype = self.objective.teacher_head.dtype
        teacher = [sequence.teacher(dtype) for sequence in sequences if sequence.served]
        with self.autocast():
            outputs = [draft.head_input(output) for output in self.unroll(draft, sequences)]
            return fused_loss(draft.lm_head.weight, outputs, self.objective, teacher, weights)

    def unroll(self, draft: Eagle3Draft, sequences: Many[Sequence]) -> list[Tensor]:
        """The layer's output of each step, with gradients through all earlier steps.

        Linear layers run on the rows of all sequences at once, attention on one sequence at a time.

        Returns:
            Per step i (rows, hidden): of each sequence in turn its first `served` - i rows, then rows without meaning.
        """
        sequences = [sequence for sequence in sequences if sequence.served]
        if not sequences:
            return [self.embedding.new_zeros(0, draft.config.hidden_size) for _ in range(self.steps)]
        firsts = [sequence.first_served for sequence in sequences]
        tokens = [self._embed(sequence.token_ids) for sequence in sequences]
        prompts, states = self._fuse(draft, sequences)
        keys, values = draft.project_keys(
            stack_rows(embedded[:first] for embedded, first in zip(tokens, firsts, strict=True)),
            stack_rows(prompts),
            _positions(firsts, [0] * len(firsts), self.embedding.device),
        )
        cache = [_RowCache(k, v) for k, v in zip(_cut(keys, firsts), _cut(values, firsts), strict=True)]
        outputs: list[Tensor] = []
        rows = sum(sequence.served for sequence in sequences)
        for step in range(self.steps):
            sizes = [max(sequence.served - step, 0) for sequence in sequences]
            starts = [first + step for first in firsts]
            state = stack_rows((part[:n] for part, n in zip(states, sizes, strict=True)), rows)
            embedded = stack_rows((e[s : s + n] for e, s, n in zip(tokens, starts, sizes, strict=True)), rows)
            projected = draft.project(embedded, state, _positions(sizes, starts, state.device, rows))
            parts = zip(cache, firsts, *(_cut(tensor, sizes) for tensor in projected), strict=True)
            attended = stack_rows((part.attend(q, k, v, first) for part, first, q, k, v in parts), rows)
            output = draft.finish(attended, state)
            states = _cut(output, sizes)
            outputs.append(output)
        return outputs

    def _embed(self, token_ids: Tensor) -> Tensor:
        """Row t: the embedding of token t+1, which is the newest that row t of step 0 has read."""
        return functional.embedding(token_ids[1:], self.embedding)

    def _fuse(self, draft: Eagle3Draft, sequences: Many[Sequence]) -> tuple[list[Tensor], list[Tensor]]:
        """States of step 0 of each sequence's prompt rows and of its served rows, each (rows, hidden)."""
        aux = stack_rows(sequence.aux[: sequence.first_served + sequence.served] for sequence in sequences)
        states = draft.fuse(aux.to(self.aux_scale.dtype) * self.aux_scale)
        parts = _cut(states, [size for s in sequences for size in (s.first_served, s.served)])
        return parts[0::2], parts[1::2]


class _RowCache:
    """Keys and values of one sequence: those of step 0, shared by its rows, and each row's own of later steps."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values  # of the prompt's rows, until step 0 adds the served ones
        self._own_keys: list[Tensor] = []
        self._own_values: list[Tensor] = []
        self._complete = False

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
        """Add a step's keys and values, and attend from its rows, which begin at position `first`."""
        if self._complete:
            self._own_keys.append(keys)
            self._own_values.append(values)
        else:
            self._keys, self._values = torch.cat([self._keys, keys]), torch.cat([self._values, values])
            self._complete = True
        return attend(queries, self._keys, self._values, self._own_keys, self._own_values, first)


def _positions(sizes: list[int], starts: list[int], device: torch.device, rows: int = 0) -> Tensor:
    """Positions of rows that were stacked, int64."""
    spans = (torch.arange(start, start + n, device=device) for start, n in zip(starts, sizes, strict=True))
    return stack_rows(spans, rows)


def _cut(stacked: Tensor, sizes: list[int]) -> list[Tensor]:
    """The parts that were stacked."""
    return list(stacked[: sum(sizes)].split(sizes))
