"""Shows, before anything is extracted, that captured states are the target's own.

A wrong layer costs the draft only a little acceptance, so nobody would notice it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from tasks.states.embedded import right_padded
from tasks.states.source import aux_layers
from tasks.target.decoding import decode
from tasks.target.model import Target

PROMPTS = 4
TOKENS = 16
_TIE = 4  # roundings of the best score
_ROUNDING = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}  # largest relative difference that batching may make


@dataclass(frozen=True)
class Check:
    """One figure and its limit."""

    check: str
    value: float
    limit: float
    passed: bool


def probe(target: Target, prompts: Sequence[list[int]], spec: ExtractionSpec) -> list[Check]:
    """Three figures on greedy answers of a few prompts.

    - greedy_agreement: share of positions where lm_head(last) gives the token that decoding gave;
    - layer_difference: largest difference between the captured states and transformers' own hidden states;
    - batch_difference: largest relative difference between a sequence's states alone and in a padded batch.
    """
    layers = aux_layers(spec, len(target.layers))
    answers = decode(target, prompts, TOKENS, eos_ids=target.facts["eos_ids"])
    sequences = list(zip(prompts, answers, strict=True))
    ids = right_padded([prompt + answer for prompt, answer in sequences]).to(target.device)
    aux, last = target.capture(ids, aux_layers=layers)
    agreement = _greedy_agreement(target, sequences, last)
    layer = _layer_difference(target, ids, aux, layers)
    batch = max(
        _alone_difference(target, prompt + answer, aux[row], last[row], layers)
        for row, (prompt, answer) in enumerate(sequences)
    )
    rounding = _ROUNDING[target.facts["dtype"]]
    return [
        Check("greedy_agreement", agreement, spec.probe_agreement, agreement >= spec.probe_agreement),
        Check("layer_difference", layer, 0.0, layer <= 0),
        Check("batch_difference", batch, rounding, batch <= rounding),
    ]


def refuse_failed(checks: Sequence[Check]) -> None:
    """Raises ProbeFailed with all figures when one does not keep its limit."""
    if failed := [check.check for check in checks if not check.passed]:
        figures = ", ".join(f"{check.check} {check.value:.4g} (limit {check.limit:.4g})" for check in checks)
        raise ProbeFailed(
            f"captured states are not those of the target ({', '.join(failed)}): {figures}. "
            "The model's code or the transformers version does something that eyas does not know: do not train on it"
        )


def _greedy_agreement(target: Target, sequences: Sequence[tuple[list[int], list[int]]], last: Tensor) -> float:
    right, count = 0, 0
    for row, (prompt, answer) in enumerate(sequences):
        scores = target.lm_head(last[row, len(prompt) - 1 : len(prompt) - 1 + len(answer)])
        chosen = scores.gather(-1, torch.tensor(answer, device=scores.device)[:, None])[:, 0]
        best = scores.max(-1).values
        # Decoding rounds otherwise than prefill does, so a tie within the type's precision is no disagreement.
        right += int((chosen >= best - _TIE * torch.finfo(scores.dtype).eps * best.abs()).sum())
        count += len(answer)
    return right / count


@torch.no_grad()
def _layer_difference(target: Target, ids: Tensor, aux: Tensor, layers: Sequence[int]) -> float:
    states = target.decoder(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    wanted = torch.cat([states[layer + 1] for layer in layers], dim=-1)
    return float((aux - wanted).abs().max())


def _alone_difference(target: Target, ids: list[int], aux: Tensor, last: Tensor, layers: Sequence[int]) -> float:
    alone = target.capture(torch.tensor([ids], device=target.device), aux_layers=layers)
    return max(
        float(((single[0] - batched[: len(ids)]).norm(dim=-1) / single[0].norm(dim=-1)).max())
        for single, batched in zip(alone, (aux, last), strict=True)
    )
