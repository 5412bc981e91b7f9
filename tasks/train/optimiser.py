"""AdamW over a draft's parameters: the sum of the parts' gradients, the clip and the update, spread over the crew.

Every parameter is handled by itself, so the result does not depend on how many threads there are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from schemas.sections import TrainingSpec
from tasks.train.gradient import Crew, PartGradient

MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(step: int, steps: int, spec: TrainingSpec) -> float:
    """The rate of the update that follows `step` of `steps` finished ones: linear rise, then what the schedule says.

    linear and wsd (warm-up, stable, decay) stay at the peak until the last decay_share of the run; wsd falls as
    1 - sqrt, arXiv 2405.18392. cosine falls from the end of the warm-up on.
    """
    rise = (step + 1) / spec.warmup_steps if spec.warmup_steps else 1.0
    if spec.schedule == "cosine":
        progress = (step - spec.warmup_steps) / max(steps - spec.warmup_steps, 1)
        fall = (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2
    else:
        fall = min((steps - step) / (spec.decay_share * steps), 1.0) if spec.decay_share else 1.0
        if spec.schedule == "wsd":
            fall = 1 - math.sqrt(1 - fall)
    return spec.learning_rate * min(rise, spec.floor + (1 - spec.floor) * fall)


class Optimiser:
    """AdamW with gradient clipping. Norm weights are not decayed."""

    def __init__(self, parameters: list[nn.Parameter], spec: TrainingSpec, crew: Crew) -> None:
        self._parameters, self._clip, self._crew = parameters, spec.clip, crew
        self._adam = [
            torch.optim.AdamW([p], lr=0.0, weight_decay=spec.weight_decay if p.ndim > 1 else 0.0, fused=True)
            for p in parameters
        ]
        self._largest_first = sorted(range(len(parameters)), key=lambda index: -parameters[index].numel())

    def step(self, parts: list[PartGradient], rate: float) -> float:
        """Update the parameters by the sum of the parts' gradients, whose memory it takes over; returns its norm.

        Nothing is updated if the norm is not finite.
        """
        norms = self._crew.map(lambda index: self._add_up(parts, index), self._largest_first)
        norm = math.sqrt(math.fsum(value * value for value in norms))
        if not math.isfinite(norm):
            return norm
        factor = min(self._clip / (norm + 1e-6), 1.0)
        self._crew.map(lambda index: self._update(parts[0].gradients[index], index, factor, rate), self._largest_first)
        return norm

    def state(self, index: int) -> dict[str, Tensor]:
        """Copies of the moments of a parameter; empty before the first step."""
        state = self._adam[index].state[self._parameters[index]]
        return {name: state[name].clone() for name in MOMENTS if name in state}

    def restore(self, index: int, moments: dict[str, Tensor], steps: int) -> None:
        """Put the moments of a parameter back as they were after this many steps."""
        self._adam[index].state[self._parameters[index]] = {
            "step": torch.tensor(float(steps), device=self._parameters[index].device),
            **moments,
        }

    @torch.no_grad()
    def _add_up(self, parts: list[PartGradient], index: int) -> float:
        total = parts[0].gradients[index]
        for part in parts[1:]:
            total.add_(part.gradients[index])
        return float(torch.linalg.vector_norm(total))

    def _update(self, gradient: Tensor, index: int, factor: float, rate: float) -> None:
        adam, parameter = self._adam[index], self._parameters[index]
        parameter.grad = gradient.mul_(factor) if factor < 1 else gradient
        adam.param_groups[0]["lr"] = rate
        adam.step()
        parameter.grad = None
