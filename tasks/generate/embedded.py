"""The engine inside this process: decodes batches with the loaded target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tasks.formats.codec import Codec
from tasks.generate.engine import Answer, Sampling
from tasks.target.decoding import Choose, decode, greedy, ignore
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt
from tasks.target.sampling import draw, next_token_probabilities, row_uniforms


class EmbeddedEngine:
    """Engine "transformers"."""

    name = "transformers"

    def __init__(self, target: Target, codec: Codec) -> None:
        self.target, self.codec = target, codec
        self.model: str = target.facts["model"]
        self.eos_ids: list[int] = target.facts["eos_ids"]

    def generate(
        self, batch: Sequence[RenderedPrompt], sampling: Sampling, report: Callable[[int], None] = ignore
    ) -> list[Answer]:
        """Answer a batch, row for row."""
        prompts = [list(prompt.ids) for prompt in batch]
        choose = sampler(batch, sampling, self.target.device) if sampling.temperature else greedy
        outputs = decode(self.target, prompts, sampling.max_tokens, choose, self.eos_ids, report)
        special = self.codec.special_ids
        texts = self.codec.decode([[number for number in ids if number not in special] for ids in outputs])
        return [
            Answer(
                prompt_id=prompt.prompt_id,
                output_ids=ids,
                text=text,
                finish_reason="stop" if ids[-1] in self.eos_ids else "length",
                max_tokens=sampling.max_tokens,
                prompt_tokens=len(prompt.ids),
                completion_tokens=len(ids),
            )
            for prompt, ids, text in zip(batch, outputs, texts, strict=True)
        ]


def sampler(batch: Sequence[RenderedPrompt], sampling: Sampling, device: torch.device) -> Choose:
    """Draws each prompt's tokens with that prompt's own numbers."""
    numbers = [row_uniforms(sampling.seed, r.prompt_id, sampling.temperature, sampling.max_tokens) for r in batch]
    uniforms = torch.from_numpy(np.stack(numbers)).to(device)

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        probabilities = next_token_probabilities(logits, sampling.temperature, sampling.top_p)
        return draw(probabilities, uniforms[rows, step])

    return choose
