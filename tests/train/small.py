"""Small drafts and random sequences for the tests of training."""

from __future__ import annotations

import torch

from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.train.fused_loss import Objective
from tasks.train.losses import LossKind
from tasks.train.objective import TrainingTimeTest
from tasks.train.sequence import Sequence, TeacherParts

HIDDEN, VOCAB, DRAFT_VOCAB = 16, 61, 24


def small_config(**changes: object) -> DraftConfig:
    """4 query heads on 2 key-value heads of 6 dimensions, so that no two sizes are equal by chance."""
    fields = {
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 512,
        "aux_layers": (1, 2, 3),
    }
    return DraftConfig.model_validate(fields | changes)


def small_draft(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object) -> Eagle3Draft:
    """A draft with random weights, large enough that every part of it matters, and a scattered vocabulary."""
    draft = Eagle3Draft(small_config(**changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else noise * 1.5 / parameter.shape[-1] ** 0.5)
    draft.set_vocabulary(torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values)
    return draft.to(dtype)


def random_sequence(prompt: int, answer: int, seed: int, hidden: int = HIDDEN, vocab: int = VOCAB) -> Sequence:
    """A sequence of random ids and states; `last` begins where the extraction step begins to store it."""
    generator = torch.Generator().manual_seed(seed)
    length = prompt + answer
    return Sequence(
        token_ids=torch.randint(vocab, (length,), generator=generator),
        aux=torch.randn(length, 3 * hidden, generator=generator).bfloat16(),
        last=torch.randn(answer + 1, hidden, generator=generator).bfloat16(),
        last_from=prompt - 1,
        prompt_length=prompt,
    )


def random_teacher(hidden: int = HIDDEN, vocab: int = VOCAB, dtype: torch.dtype = torch.float64) -> TeacherParts:
    """Random embedding and head."""
    generator = torch.Generator().manual_seed(99)
    embedding, head = torch.randn(2, vocab, hidden, generator=generator)
    return TeacherParts(embedding.to(dtype), head.to(dtype))


def small_test(
    draft: Eagle3Draft, steps: int = 3, dtype: torch.dtype = torch.float64, loss: LossKind = "cross_entropy"
) -> TrainingTimeTest:
    """The training-time test of a small draft, with three different aux scales."""
    teacher = random_teacher(dtype=dtype)
    embedding = draft.embedding(teacher.embedding).detach()
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=dtype).repeat_interleave(HIDDEN)
    objective = Objective(loss, 3.0, teacher.head[draft.target_ids()], teacher.head)
    return TrainingTimeTest(embedding, objective, scale, steps, 0.8)
