"""What a guess costs: loss and gradient of rows of scores against the target, as small functions without autograd.

With scores z over the draft vocabulary, q = softmax(z), t the target's distribution restricted to it and renormalised,
and p = mass · t the same without renormalising (mass: the target's probability that the draft vocabulary holds):

    cross_entropy   -Σ t log q
    kl              Σ t (log t - log q), whose gradient is that of cross_entropy
    lk_alpha        -log α,                      α = Σ min(p, q): the chance that rejection sampling keeps q's token
    lk_lambda       w · kl + (1 - w)(1 - α),     w = exp(-decay · α), without gradient

The two LK losses are those of arXiv 2602.23881 as SpecForge writes them (specforge/core/lk_loss.py): α with the mass
that is not renormalised, since the engine compares q with the whole of p. Each row has its own α and w here, so that
the loss of a batch is the sum of its parts'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LossKind = Literal["cross_entropy", "kl", "lk_alpha", "lk_lambda"]
NEEDS_MASS: tuple[LossKind, ...] = ("lk_alpha", "lk_lambda")

_LEAST_ACCEPTANCE = 1e-12  # below it a row's acceptance is rounding, and its logarithm would drown the others


@dataclass(frozen=True)
class Taught:
    """The target's side of some rows."""

    shares: Tensor  # t: (rows, draft_vocab)
    entropy: Tensor  # of t: (rows,)
    mass: Tensor | None  # (rows,); only for losses that need it

    def last(self, rows: int) -> Taught:
        """The last so many rows."""
        start = len(self.shares) - rows
        return Taught(self.shares[start:], self.entropy[start:], None if self.mass is None else self.mass[start:])


Loss = Callable[[Tensor, Tensor, Taught, float], Tensor]
"""Turns q, (rows, draft_vocab), into the gradient of the rows' loss by z in place, given the rows' cross-entropy, the
target's side and the decay; returns the losses, (rows,)."""


def cross_entropy(q: Tensor, entropies: Tensor, taught: Taught, decay: float) -> Tensor:
    """-Σ t log q; gradient q - t."""
    q.sub_(taught.shares)
    return entropies


def kl(q: Tensor, entropies: Tensor, taught: Taught, decay: float) -> Tensor:
    """Cross-entropy without the target's own entropy; gradient q - t."""
    q.sub_(taught.shares)
    return entropies - taught.entropy


def lk_alpha(q: Tensor, entropies: Tensor, taught: Taught, decay: float) -> Tensor:
    """-log α; gradient -(dα/dz) / α."""
    alpha, slope = _acceptance(q, taught)
    alpha = alpha.clamp_min(_LEAST_ACCEPTANCE)
    q.copy_(slope.div_(-alpha[:, None]))
    return -alpha.log()


def lk_lambda(q: Tensor, entropies: Tensor, taught: Taught, decay: float) -> Tensor:
    """w · kl + (1 - w)(1 - α); gradient w (q - t) - (1 - w) dα/dz."""
    alpha, slope = _acceptance(q, taught)
    weight = (-decay * alpha).exp()
    losses = weight * (entropies - taught.entropy) + (1 - weight) * (1 - alpha)
    q.sub_(taught.shares).mul_(weight[:, None]).sub_(slope.mul_((1 - weight)[:, None]))
    return losses


LOSSES: dict[LossKind, Loss] = {
    "cross_entropy": cross_entropy,
    "kl": kl,
    "lk_alpha": lk_alpha,
    "lk_lambda": lk_lambda,
}


def _acceptance(q: Tensor, taught: Taught) -> tuple[Tensor, Tensor]:
    """α, (rows,), and dα/dz, (rows, draft_vocab): q_j ([q_j < p_j] - Σ over q < p of q)."""
    if taught.mass is None:
        raise ValueError("this loss needs the probability that the target gives to the draft vocabulary")
    p = taught.shares * taught.mass[:, None]
    below = (q < p).to(q.dtype)
    alpha = torch.minimum(p, q).sum(-1)
    return alpha, (below - torch.linalg.vecdot(below, q)[:, None]).mul_(q)
