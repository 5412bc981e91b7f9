"""Drafters of the tiny target and prompts of conversations, for the tests of the benchmark in engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from schemas.prompts import PROMPTS
from tasks.benchmark.batch import Batch
from tasks.benchmark.verify import Proposal, Uniforms
from tasks.draft.checkpoint import write_checkpoint
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target
from tests.rows import prompt

TEXTS = ["Hi", "Name three rivers.", "What is a prime number?", "Sing!", "Why is the sky blue?"]
CHAIN = 3


def small_draft(**changes: Any) -> Eagle3Draft:
    """A random draft for the tiny target that can propose 512 of its tokens."""
    config = DraftConfig(
        hidden_size=64,
        target_hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=49152,
        draft_vocab_size=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=1024,
        aux_layers=(1, 2, 3),
    ).model_copy(update=changes)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        draft = Eagle3Draft(config).eval().requires_grad_(False)
    draft.set_vocabulary(torch.arange(512) * 3)
    return draft


def write_draft(folder: Path, **changes: Any) -> Path:
    """A folder with such a draft."""
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder, small_draft(**changes), torch.bfloat16)
    return folder


def prompt_table(later: int = 0) -> pa.Table:
    """First turns, and a second turn of the first `later` of them."""
    rows = [prompt(text, split="benchmark", dataset="chat" if n % 2 else "code") for n, text in enumerate(TEXTS)]
    rows += [prompt("And why?", parent=row, split="benchmark", dataset=row["dataset"]) for row in rows[:later]]
    return PROMPTS.table(rows)


class Foresight:
    """A drafter that knows what the target will say, and errs at every fifth position."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self, target: Target) -> None:
        self.target = target

    def observe(self, batch: Batch, aux: Tensor | None, first: Tensor, counts: Tensor) -> None:
        pass

    def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
        tokens = batch.tokens.new_zeros(len(batch.answers), batch.settings.chain)
        for row in batch.active.tolist():
            known = batch.tokens[row, : batch.lengths[row]]
            for _ in range(batch.settings.chain):
                best = self.target.lm_head(self.target.hidden(known[None])[0, -1]).argmax()
                known = torch.cat([known, (best + (len(known) % 5 == 0))[None]])
            tokens[row] = known[-batch.settings.chain :]
        return Proposal.certain(tokens, torch.full_like(batch.lengths, batch.settings.chain))

    def select(self, rows: Tensor) -> None:
        pass
