"""Factors that bring the three auxiliary states to the same size, and their place inside fc.

The states of deep layers are ten times larger than those of early ones, which a freshly made fc cannot use well.
Training multiplies them by fixed factors; stored weights have the factors folded into fc, so that a stored draft reads
raw states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from schemas.errors import DraftError
from tasks.draft.model import Eagle3Draft
from tasks.train.loader import SequenceSource

AUX_STATES = 3
_SAMPLE = 256  # sequences; the size of a state is known well after far fewer


def measure_aux_scale(store: SequenceSource) -> list[float]:
    """1/rms of each auxiliary state over evenly spread sequences.

    The first token of a sequence is left out: it takes the attention that no one wants, at a thousand times the size.

    Raises:
        DraftError: a state is zero or not finite.
    """
    count = min(len(store), _SAMPLE)
    squares, values = torch.zeros(AUX_STATES, dtype=torch.float64), 0
    for number in range(count):
        aux = store.read(number * len(store) // count).aux[1:]
        states = aux.float().view(len(aux), AUX_STATES, -1)
        squares += states.square().sum(dim=(0, 2), dtype=torch.float64)
        values += states.numel() // AUX_STATES
    mean = squares / max(values, 1)
    if not (mean.isfinite().all() and (mean > 0).all()):
        raise DraftError(f"the mean squares of the auxiliary states are {mean.tolist()}: extract them again")
    return mean.rsqrt().tolist()


def as_columns(scale: list[float], draft: Eagle3Draft) -> Tensor:
    """The factors as float32 (3·target_hidden,), one per column of fc."""
    return torch.tensor(scale, dtype=torch.float32).repeat_interleave(draft.config.target_hidden_size)


@torch.no_grad()
def fold(draft: Eagle3Draft, scale: list[float]) -> None:
    """Make fc read raw states: multiply its columns by the factors."""
    draft.fc.weight.mul_(as_columns(scale, draft).to(draft.fc.weight.device))


@torch.no_grad()
def unfold(draft: Eagle3Draft, scale: list[float]) -> None:
    """Undo `fold`: make fc read scaled states."""
    draft.fc.weight.div_(as_columns(scale, draft).to(draft.fc.weight.device))
