"""How a next token is drawn: one uniform number per new token through the inverse of the distribution function.

A row's numbers depend on the seed, the prompt and the temperature only, so a batch cut or a restart changes nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def row_uniforms(seed: int, prompt_id: str, temperature: float, count: int) -> np.ndarray:
    """`count` float32 numbers in [0, 1) for one answer; the first n of them do not depend on `count`."""
    identity = f"{seed}\0{prompt_id}\0{float(temperature)!r}".encode()
    bits = np.random.PCG64(int.from_bytes(hashlib.sha256(identity).digest()[:16]))
    return np.random.Generator(bits).random(count, dtype=np.float32)


def next_token_probabilities(logits: Tensor, temperature: float, top_p: float = 1.0) -> Tensor:
    """What is sampled from: (..., vocab) scores -> (..., vocab) probabilities in float32; `temperature` above 0.

    With `top_p` below 1 the smallest set of likeliest tokens that reaches this mass is kept and renormalised
    (nucleus sampling, arXiv 1904.09751).
    """
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0)
    kept = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Columns by inverse distribution function: (rows, columns) and (rows,) in [0, 1) -> int64 (rows,).

    The sums are as precise as the uniform numbers: float32 or float64. The probabilities need not be normalised; a
    column of probability 0 is never drawn.
    """
    mass = probabilities.to(uniforms.dtype).cumsum(dim=-1)
    total = mass[:, -1]
    wanted = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, wanted[:, None], right=True)[:, 0]
