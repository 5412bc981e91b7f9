"""Rotary embeddings: as the papers write them, and as transformers computes them for the target."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tests.train.small import small_draft

DIM, THETA = 16, 50000.0
ROPES = {
    "default": {"rope_type": "default", "rope_theta": THETA},
    "linear": {"rope_type": "linear", "rope_theta": THETA, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": THETA,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": THETA,
        "factor": 64.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 256,
    },
    "yarn as DeepSeek and Kimi write it": {
        "rope_type": "yarn",
        "rope_theta": THETA,
        "factor": 64.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 256,
    },
}


def angles_per_position(rope: dict[str, float]) -> tuple[list[float], float]:
    """Radians per position of each pair of dimensions, and the factor of both sine and cosine."""
    plain = [THETA ** (-2 * pair / DIM) for pair in range(DIM // 2)]
    kind, factor = rope["rope_type"], rope.get("factor", 1.0)
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return [angle / factor for angle in plain], 1.0
    original = rope["original_max_position_embeddings"]
    turns = [original * angle / (2 * math.pi) for angle in plain]  # over the original context
    if kind == "llama3":  # few turns: stretched; many: as they are; between: a linear mix
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = [min(max((turn - low) / (high - low), 0.0), 1.0) for turn in turns]
        return [angle * (share + (1 - share) / factor) for angle, share in zip(plain, kept, strict=True)], 1.0

    # YaRN, arXiv 2309.00071: the ramp runs from the pair that turns beta_fast times to the one of beta_slow
    def pair_of(turn: float) -> float:
        return DIM * math.log(original / (turn * 2 * math.pi)) / (2 * math.log(THETA))

    first = max(math.floor(pair_of(rope["beta_fast"])), 0)
    last = min(math.ceil(pair_of(rope["beta_slow"])), DIM - 1)
    stretched = [min(max((pair - first) / (last - first), 0.0), 1.0) for pair in range(DIM // 2)]
    angles = [a * ((1 - share) + share / factor) for a, share in zip(plain, stretched, strict=True)]
    return angles, 1.0 if rope.get("mscale") == rope.get("mscale_all_dim") and "mscale" in rope else (
        0.1 * math.log(factor) + 1
    )


@pytest.mark.parametrize("name", ROPES)
def test_the_draft_rotates_as_the_papers_say(name: str) -> None:
    draft = small_draft(torch.float32, head_dim=DIM, rope_parameters=ROPES[name], max_position_embeddings=16384)
    positions = torch.tensor([0, 1, 2, 100, 255, 300, 5000, 16000])
    x = torch.randn(len(positions), 3, DIM)
    angles, size = angles_per_position(ROPES[name])
    turned = torch.view_as_complex(torch.stack([x[..., : DIM // 2], x[..., DIM // 2 :]], -1).double().contiguous())
    turned = turned * torch.polar(
        torch.full((len(positions), 1, DIM // 2), size, dtype=torch.float64),
        positions[:, None, None] * torch.tensor(angles, dtype=torch.float64),
    )
    expected = torch.cat([turned.real, turned.imag], -1).float()
    torch.testing.assert_close(draft.rotate(x, positions), expected, rtol=1e-4, atol=3e-3)


@pytest.mark.parametrize("name", ROPES)
def test_the_draft_rotates_as_transformers_rotates_in_the_target(name: str) -> None:
    draft = small_draft(torch.float32, head_dim=DIM, rope_parameters=ROPES[name], max_position_embeddings=16384)
    target = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=16384,
        rope_parameters=dict(ROPES[name]),
    )
    positions = torch.arange(0, 16384, 371)
    queries, keys = torch.randn(2, 1, 4, len(positions), DIM)
    cos, sin = LlamaRotaryEmbedding(target)(queries, positions[None])
    wanted = apply_rotary_pos_emb(queries, keys, cos, sin)
    found = (draft.rotate(x[0].transpose(0, 1), positions).transpose(0, 1)[None] for x in (queries, keys))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
