"""Small random models for the benchmark's tests: fast, with a vocabulary so small that probabilities can be summed."""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.benchmark.batch import Batch, DecodeSettings
from tasks.benchmark.verify import Proposal, Uniforms
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt

ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def make_target(vocab: int, seed: int = 0, spread: float = 0.3) -> Target:
    """A random target with 5 layers and hidden size 32."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=5,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=512,
                initializer_range=spread,
                rope_parameters=ROPE,
            )
        )
    return Target(model, {})


def make_draft(vocab: int, ids: list[int], seed: int = 1, sharpness: float = 1.0, **changes: Any) -> Eagle3Draft:
    """A random draft for `make_target` that can propose these ids."""
    fields = {
        "hidden_size": 32,
        "target_hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocab,
        "draft_vocab_size": len(ids),
        "rms_norm_eps": 1e-6,
        "rope_parameters": ROPE,
        "max_position_embeddings": 512,
        "aux_layers": (0, 2, 3),
    }
    config = DraftConfig.model_validate(fields | changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = Eagle3Draft(config).eval().requires_grad_(False)
    for parameter in draft.midlayer.parameters():
        if parameter.ndim == 2:
            parameter.mul_(2)
    draft.lm_head.weight.mul_(6 * sharpness)
    draft.set_vocabulary(torch.tensor(ids))
    return draft


def make_prompts(count: int, vocab: int, longest: int = 9) -> list[RenderedPrompt]:
    """Prompts of different lengths and random tokens."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [
        RenderedPrompt(f"{number:032x}", "toy", tuple(torch.randint(vocab, (length,), generator=generator).tolist()))
        for number, length in enumerate(lengths)
    ]


def make_settings(**changes: Any) -> DecodeSettings:
    """Greedy, chain of 3, 24 tokens, no end id."""
    usual = DecodeSettings(temperatures=(0.0,), chain=3, max_tokens=24, end_ids=(), seed=5)
    return dataclasses.replace(usual, **changes)


class Oracle:
    """A deliberately good drafter: proposes the given outputs by prompt id, with every fifth token wrong."""

    aux_layers: tuple[int, ...] = ()

    def __init__(self, outputs: dict[str, list[int]], vocab: int) -> None:
        self.outputs, self.vocab = outputs, vocab

    def observe(self, batch: Batch, aux: Tensor | None, first: Tensor, counts: Tensor) -> None:
        pass

    def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
        tokens = batch.tokens.new_zeros(len(batch.answers), batch.settings.chain)
        lengths = torch.zeros_like(batch.lengths)
        for row, answer in enumerate(batch.answers):
            done = len(answer.output_ids)
            for step, token in enumerate(self.outputs[answer.prompt.prompt_id][done : done + batch.settings.chain]):
                tokens[row, step] = (token + ((done + step) % 5 == 4)) % self.vocab
                lengths[row] = step + 1
        return Proposal.certain(tokens, lengths)

    def select(self, rows: Tensor) -> None:
        pass
