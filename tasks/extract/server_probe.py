"""Shows, before anything is extracted, that the states of a server are the target's own: of the layers that are wanted,
one per id, and the same whatever else the server does at the time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from tasks.extract.probe import TOKENS, Check
from tasks.states.embedded import right_padded
from tasks.states.source import AUX_STATES, Asked, Captured, StateSource, aux_layers, refuse_unsound
from tasks.target.model import Target
from tasks.target.parts import HeadParts

_ROUNDING = {"float32": 0.02, "bfloat16": 0.1, "float16": 0.1}  # states come as bfloat16, whatever computed them
_NEARER = 0.5  # of the distance to the next layer
_TIE = 2**-6  # of the best score, for states that were rounded to bfloat16


def probe_server(
    source: StateSource,
    reference: Target | None,
    parts: HeadParts,
    prompts: Sequence[list[int]],
    dtype: str,
    spec: ExtractionSpec,
) -> list[Check]:
    """Figures on the server's own greedy answers to a few prompts.

    - greedy_agreement: share of positions whose last state, or likeliest token, gives the token that was sampled;
    - batch_difference: largest relative difference between a sequence's states alone and beside others;
    - layer_difference, last_difference: mean relative difference from the states of the target in this process;
    - layer_margin: the largest distance from a layer's states there, as a share of that from the next layer's.

    Args:
        reference: the target in this process; without it the last three figures are not made.
        dtype: what the target computes with.

    Raises:
        ProbeFailed: states are missing, or not finite.
        EngineError: the server fails.
    """
    answers = source.greedy(prompts, TOKENS)
    sequences = [
        Asked(f"{number} of the probe", [*prompt, *answer], len(prompt) - 1)
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    together = _states(source, sequences)
    alone = [_states(source, [sequence])[0] for sequence in sequences]
    agreement = _agreement(parts, answers, together)
    rounding = _ROUNDING[dtype]
    difference = max(_difference(*pair) for pair in zip(alone, together, strict=True))
    checks = [
        Check("greedy_agreement", agreement, spec.probe_agreement, agreement >= spec.probe_agreement),
        Check("batch_difference", difference, rounding, difference <= rounding),
    ]
    return checks + (_against(reference, sequences, together, rounding, spec) if reference else [])


def _states(source: StateSource, sequences: Sequence[Asked]) -> list[Captured]:
    found = {captured.place: captured for batch in source.states(sequences) for captured in batch}
    if len(found) != len(sequences):
        raise ProbeFailed(f"the server gave the states of {len(found)} of {len(sequences)} sequences")
    for place, captured in found.items():
        refuse_unsound(sequences[place], captured)
    return [found[place] for place in range(len(sequences))]


def _agreement(parts: HeadParts, answers: Sequence[Sequence[int]], found: Sequence[Captured]) -> float:
    right = 0
    for answer, captured in zip(answers, found, strict=True):
        chosen = torch.tensor(answer)[:, None]
        if captured.top is not None:
            right += int((captured.top.ids[: len(answer), :1] == chosen).sum())
        elif captured.last is not None:
            scores = parts.scores(captured.last[: len(answer)])
            best = scores.max(-1, keepdim=True).values
            right += int((scores.gather(-1, chosen) >= best - _TIE * best.abs()).sum())
    return right / sum(len(answer) for answer in answers)


def _difference(one: Captured, other: Captured) -> float:
    pairs = [(one.aux, other.aux)]
    if one.last is not None and other.last is not None:
        pairs.append((one.last, other.last))
    return max(float(_relative(a, b).max()) for a, b in pairs)


def _against(
    reference: Target, sequences: Sequence[Asked], found: Sequence[Captured], rounding: float, spec: ExtractionSpec
) -> list[Check]:
    """The figures that need the target itself."""
    layers = aux_layers(spec, len(reference.layers))
    aux, last, margin = [], [], []
    for asked, captured in zip(sequences, found, strict=True):
        ids = right_padded([asked.ids]).to(reference.device)
        near = [layer + step for layer in layers for step in (-1, 0, 1)]
        states, final = reference.capture(ids, aux_layers=[max(layer, 0) for layer in near])
        table = states[0].float().cpu().view(len(asked.ids), len(layers), 3, -1)  # (length, layers, neighbours, hidden)
        theirs = captured.aux.float().view(len(asked.ids), AUX_STATES, -1)
        distance = (theirs[:, :, None] - table).norm(dim=-1).mean(0)  # (layers, neighbours)
        aux.append(_relative(table[:, :, 1], theirs).mean())
        for row, layer in enumerate(layers):
            others = [distance[row, 2]] + ([distance[row, 0]] if layer else [])
            margin.append(distance[row, 1] / torch.stack(others).min())
        if captured.last is not None:
            last.append(_relative(final[0, asked.taught_from :].float().cpu(), captured.last.float()).mean())
    shift, nearest = float(torch.stack(aux).max()), float(torch.stack(margin).max())
    checks = [
        Check("layer_difference", shift, rounding, shift <= rounding),
        Check("layer_margin", nearest, _NEARER, nearest <= _NEARER),
    ]
    if last:
        final_shift = float(torch.stack(last).max())
        checks.append(Check("last_difference", final_shift, rounding, final_shift <= rounding))
    return checks


def _relative(wanted: Tensor, found: Tensor) -> Tensor:
    """Distance of each state as a share of its size."""
    return (wanted.float() - found.float()).norm(dim=-1) / wanted.float().norm(dim=-1)
