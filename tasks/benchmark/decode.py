"""Speculative decoding of a batch, lossless, with any drafter and any full-attention Hugging Face target.

Per step: the drafter proposes a chain for each row, one forward pass of the target gives the states of all of it, and
`verify` keeps what the target would have said itself. At temperature 0 the output is that of plain greedy decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tasks.benchmark.batch import Answer, Batch, DecodeSettings
from tasks.benchmark.cache import SlotCache
from tasks.benchmark.drafters import Drafter
from tasks.benchmark.verify import Proposal, verify
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt

_COMPACT_BELOW = 0.75  # share of rows still active under which copying the caches is cheaper than carrying done rows


@torch.no_grad()
def decode(
    target: Target,
    drafter: Drafter,
    name: str,
    prompts: Sequence[RenderedPrompt],
    settings: DecodeSettings,
    report: Callable[[int], None] = lambda ended: None,
) -> list[Answer]:
    """Decode prompts together, each once per temperature.

    Args:
        target: the model.
        drafter: a fresh one; it serves this batch only.
        name: the drafter's name, which seeds the random numbers along with seed, prompt and temperature.
        prompts: at least one; prompt + max_tokens + chain must fit the target's context.
        settings: temperatures, chain, limits and seed.
        report: told after each step how many answers ended.

    Returns:
        An answer per prompt and temperature, prompts in the given order, temperatures inner.

    Raises:
        EngineError: the target's attention is not full.
    """
    batch = Batch(prompts, settings, name, target.device)
    answers = list(batch.answers)
    cache = SlotCache(target.model.config, batch.capacity)
    prefill(target, drafter, batch, cache, len(settings.temperatures))
    report(len(answers) - len(batch.active))
    while len(batch.active):
        if len(batch.active) < _COMPACT_BELOW * len(batch.answers):
            rows = batch.active
            batch.select(rows)
            cache.select(rows)
            drafter.select(rows)
        before = len(batch.active)
        _step(target, drafter, batch, cache)
        report(before - len(batch.active))
    return answers


def prefill(target: Target, drafter: Drafter, batch: Batch, cache: SlotCache, repeats: int) -> None:
    """Run the prompts, once for all temperatures, and take each row's first token."""
    lengths = batch.lengths[::repeats]
    longest = int(lengths.max())
    ids = batch.tokens[::repeats, :longest]
    positions = torch.arange(longest, device=batch.device).expand(len(ids), -1)
    aux, last = _forward(target, drafter, cache, ids, positions, longest)
    last = last[torch.arange(len(ids), device=batch.device), lengths - 1].repeat_interleave(repeats, dim=0)
    cache.expand(repeats)
    nothing = Proposal.certain(batch.tokens.new_zeros(len(last), 0), torch.zeros_like(batch.lengths))
    verdict = verify(
        lambda rows, position: target.lm_head(last[rows]),
        nothing,
        batch.temperatures,
        batch.uniforms(),
        batch.active,
        batch.end_ids,
    )
    prompt_lengths = batch.lengths.clone()
    batch.start(verdict.tokens[:, 0])
    if aux is not None:
        aux = aux.repeat_interleave(repeats, dim=0)
    drafter.observe(batch, aux, torch.zeros_like(prompt_lengths), prompt_lengths)


def _step(target: Target, drafter: Drafter, batch: Batch, cache: SlotCache) -> None:
    """One verify step of all rows."""
    uniforms = batch.uniforms()
    proposal = drafter.propose(batch, uniforms)
    first = batch.lengths - 1  # position of the last known token, which the target has not seen
    width = proposal.tokens.shape[1] + 1
    ids = torch.cat([batch.tokens.gather(1, first[:, None]), proposal.tokens], dim=1)
    positions = first[:, None] + torch.arange(width, device=batch.device)
    visible = int(first[batch.active].max()) + width
    aux, last = _forward(target, drafter, cache, ids, positions, visible)
    verdict = verify(
        lambda rows, position: target.lm_head(last[rows, position]),
        proposal,
        batch.temperatures,
        uniforms,
        batch.active,
        batch.end_ids,
    )
    batch.advance(verdict, proposal.lengths)
    drafter.observe(batch, aux, first, verdict.emitted)


def _forward(
    target: Target, drafter: Drafter, cache: SlotCache, ids: Tensor, positions: Tensor, visible: int
) -> tuple[Tensor | None, Tensor]:
    """Auxiliary states where the drafter wants them, and the states after the final norm, (rows, tokens, ...)."""
    mask = cache.place(positions, visible).to(target.model.dtype)
    if drafter.aux_layers:
        return target.capture(ids, mask, positions, cache, aux_layers=drafter.aux_layers)
    return None, target.hidden(ids, mask, positions, cache)
