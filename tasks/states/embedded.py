"""States from the target in this process: batches of similar length through transformers' forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from schemas.extraction import ExtractionSpec
from tasks.states.source import Asked, Captured, TopTokens, aux_layers
from tasks.target.decoding import decode
from tasks.target.model import Target

_BLOCK_SCORES = 2**24  # scores over the vocabulary that are held at a time


class EmbeddedSource:
    """The target in this process."""

    def __init__(self, target: Target, spec: ExtractionSpec) -> None:
        self._target, self._spec = target, spec
        self._layers = aux_layers(spec, len(target.layers))

    def states(self, sequences: Sequence[Asked]) -> Iterator[list[Captured]]:
        """See StateSource. Padding is on the right, where causal attention cannot see it, so no mask is needed."""
        for places in cut_batches([len(asked.ids) for asked in sequences], self._spec.batch_tokens):
            ids = right_padded([sequences[place].ids for place in places]).to(self._target.device)
            aux, last = self._target.capture(ids, aux_layers=self._layers)
            aux = aux.to(torch.bfloat16).cpu()
            yield [self._captured(place, sequences[place], aux[row], last[row]) for row, place in enumerate(places)]

    def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See StateSource."""
        return decode(self._target, prompts, max_tokens, eos_ids=self._target.facts["eos_ids"])

    def _captured(self, place: int, asked: Asked, aux: Tensor, last: Tensor) -> Captured:
        length = len(asked.ids)
        taught = last[asked.taught_from : length]
        if not self._spec.teacher_top_k:
            return Captured(place, aux[:length], taught.to(torch.bfloat16).cpu(), None)
        return Captured(place, aux[:length], None, likeliest(self._target, taught, self._spec.teacher_top_k))


@torch.no_grad()
def likeliest(target: Target, last: Tensor, k: int) -> TopTokens:
    """The k likeliest tokens after each state, block by block."""
    block = max(_BLOCK_SCORES // target.facts["vocab_size"], 1)
    parts = [target.lm_head(states).float().log_softmax(-1).topk(k, sorted=True) for states in last.split(block)]
    return TopTokens(
        torch.cat([part.indices for part in parts]).to(torch.int32).cpu(), torch.cat([p.values for p in parts]).cpu()
    )


def cut_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Places of sequences, longest first, in batches of at most `batch_tokens` padded tokens, or one sequence."""
    batches: list[list[int]] = []
    room = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if room == 0:
            room = max(batch_tokens // lengths[place], 1)
            batches.append([])
        batches[-1].append(place)
        room -= 1
    return batches


def right_padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ids that begin together, int64 (B, longest)."""
    ids = torch.zeros(len(rows), max(len(row) for row in rows), dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    return ids
