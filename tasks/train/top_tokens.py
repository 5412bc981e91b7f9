"""A teacher that is known by its likeliest tokens only: what it says of the rest is that they share what is left."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_LEFT = 1e-9  # probability of all other tokens, where the likeliest ones take all within rounding


@dataclass(frozen=True)
class TopRows:
    """The likeliest tokens of some positions, best first."""

    ids: Tensor  # int64 (rows, k)
    log_probabilities: Tensor  # float32 (rows, k), over the whole vocabulary

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> TopRows:
        return TopRows(self.ids[rows], self.log_probabilities[rows])

    def to(self, device: torch.device) -> TopRows:
        """The same on another device."""
        return TopRows(self.ids.to(device), self.log_probabilities.to(device))

    @property
    def best(self) -> Tensor:
        """The likeliest tokens, int64 (rows,)."""
        return self.ids[:, 0]

    def scores(self, lookup: Tensor, draft_vocab: int) -> Tensor:
        """Log-probabilities of the draft vocabulary's tokens, float32 (rows, draft_vocab).

        Args:
            lookup: int64 (vocab,), the draft id of each token, -1 outside the draft vocabulary.
            draft_vocab: tokens of the draft.
        """
        rest = self._left() / max(len(lookup) - self.ids.shape[1], 1)
        places = lookup[self.ids]
        scores = rest.log()[:, None].repeat(1, draft_vocab + 1)  # what is outside goes into the last column
        scores.scatter_(1, places.where(places >= 0, draft_vocab), self.log_probabilities)
        return scores[:, :-1]

    def mass_outside(self, inside: Tensor) -> Tensor:
        """Probability of the tokens that are not in `inside`, bool (vocab,); float32 (rows,)."""
        is_outside = ~inside[self.ids]
        named = (self.log_probabilities.exp() * is_outside).sum(-1)
        unnamed = (~inside).sum() - is_outside.sum(-1)
        return named + self._left() * unnamed / max(len(inside) - self.ids.shape[1], 1)

    def _left(self) -> Tensor:
        return (1 - self.log_probabilities.exp().sum(-1)).clamp(min=_LEAST_LEFT)


def draft_lookup(target_ids: Tensor, vocab: int) -> Tensor:
    """The draft id of each token of the target, int64 (vocab,), -1 where the draft has none."""
    lookup = torch.full((vocab,), -1, dtype=torch.int64, device=target_ids.device)
    lookup[target_ids] = torch.arange(len(target_ids), device=target_ids.device)
    return lookup
