"""What proposes tokens: nothing, prompt lookup, or an EAGLE-3 draft with its own keys and values."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from schemas.errors import EngineError
from tasks.benchmark.batch import Batch
from tasks.benchmark.cache import KeyValues, slot_mask
from tasks.benchmark.verify import Proposal, Uniforms
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target
from tasks.target.sampling import draw


class Drafter(Protocol):
    """Proposes up to `chain` tokens per row and verify step. A drafter serves one batch."""

    aux_layers: tuple[int, ...]  # layers whose output `observe` wants; empty where it wants none

    def observe(self, batch: Batch, aux: Tensor | None, first: Tensor, counts: Tensor) -> None:
        """Learn the target's states of tokens that are now certain.

        Args:
            batch: with the newest tokens already in it.
            aux: (rows, n, 3·hidden), the states of n positions per row, the first `counts` of which are certain.
            first: int64 (rows,), position of each row's first state.
            counts: int64 (rows,), at least 1 in an active row.
        """

    def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
        """Tokens to verify; the rows that are done may hold anything."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows only."""


class PlainDrafter:
    """Proposes nothing: the target decodes alone, one token per forward pass."""

    aux_layers: tuple[int, ...] = ()

    def observe(self, batch: Batch, aux: Tensor | None, first: Tensor, counts: Tensor) -> None:
        pass

    def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
        rows = len(batch.answers)
        return Proposal.certain(batch.tokens.new_zeros(rows, 0), torch.zeros_like(batch.lengths))

    def select(self, rows: Tensor) -> None:
        pass


class NgramDrafter:
    """Prompt lookup: what followed the latest earlier occurrence of the longest known suffix (Saxena, 2023).

    Args:
        longest: most tokens of the suffix; shorter ones are tried when it does not occur, down to one token.
    """

    aux_layers: tuple[int, ...] = ()

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def observe(self, batch: Batch, aux: Tensor | None, first: Tensor, counts: Tensor) -> None:
        pass

    def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
        tokens, lengths = batch.tokens.cpu().numpy(), batch.lengths.tolist()
        found: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(lengths)
        for row in batch.active.tolist():
            found[row] = lookup(tokens[row, : lengths[row]], self.longest, batch.settings.chain)
        width = max(len(following) for following in found)
        proposed = np.zeros((len(found), width), dtype=np.int64)
        for row, following in enumerate(found):
            proposed[row, : len(following)] = following
        counts = torch.tensor([len(following) for following in found], device=batch.device)
        return Proposal.certain(torch.from_numpy(proposed).to(batch.device), counts)

    def select(self, rows: Tensor) -> None:
        pass


def lookup(known: np.ndarray, longest: int, most: int) -> np.ndarray:
    """Up to `most` tokens that followed the latest earlier occurrence of the longest suffix of `known`, int64 (n,)."""
    for size in range(min(longest, len(known) - 1), 0, -1):
        suffix = known[-size:]
        windows = np.lib.stride_tricks.sliding_window_view(known[:-1], size)
        starts = np.flatnonzero((windows == suffix).all(axis=1))
        if len(starts):
            begin = starts[-1] + size
            return known[begin : begin + most]
    return known[:0]


class EagleDrafter:
    """An EAGLE-3 draft that continues its own chain; true states replace the chain's as soon as the target has them.

    Row t of the draft holds aux[t], the embedding of token x[t+1] and position t. Its keys and values stand at slot t.
    The chain writes its own at the slots after the last true row, where the next true rows overwrite them: a row at
    slot s sees slots <= s, which are exactly those that the training-time test lets it see.
    """

    def __init__(self, draft: Eagle3Draft, target: Target) -> None:
        self.draft, self.target = draft, target
        self.aux_layers = tuple(draft.config.aux_layers)
        self.support = draft.target_ids()
        self._stored: KeyValues | None = None
        self._state: Tensor  # (rows, hidden), fused state of each row's last true position

    def observe(self, batch: Batch, aux: Tensor | None, first: Tensor, counts: Tensor) -> None:
        if aux is None:
            raise EngineError("the draft needs the target's auxiliary states")
        rows, width, _ = aux.shape
        positions = first[:, None] + torch.arange(width, device=first.device)
        states = self.draft.fuse(aux.to(self.draft.fc.weight.dtype))
        following = batch.tokens.gather(1, (positions + 1).clamp(max=batch.capacity - 1))
        keys, values = self.draft.project_keys(
            self._embed(following.flatten()), states.flatten(0, 1), positions.flatten()
        )
        if self._stored is None:
            self._stored = KeyValues(batch.capacity)
        self._stored.write(_by_row(keys, rows), _by_row(values, rows), positions)
        self._state = states[torch.arange(rows, device=first.device), (counts - 1).clamp(min=0)]

    def propose(self, batch: Batch, uniforms: Uniforms) -> Proposal:
        if self._stored is None:
            raise EngineError("the draft was asked for tokens before it saw the prompt")
        rows, chain = len(batch.answers), batch.settings.chain
        tokens = batch.tokens.new_zeros(rows, chain)
        chosen = torch.ones(rows, chain, device=batch.device)
        drawn = (batch.temperatures > 0).nonzero()[:, 0]
        distributions = torch.zeros(rows, chain, len(self.support), device=batch.device) if len(drawn) else None
        state, position = self._state, batch.lengths - 2  # of the last row whose next token is known
        token = batch.tokens.gather(1, position[:, None] + 1)[:, 0]
        for step in range(chain):
            state = self._step(batch, self._stored, token, state, position + step)
            logits = self.draft.logits(state)
            column = logits.argmax(dim=-1)
            if distributions is not None:
                q = (logits[drawn].float() / batch.temperatures[drawn, None]).softmax(dim=-1)
                column[drawn] = draw(q, uniforms.draft[drawn, step])
                distributions[drawn, step] = q
                chosen[drawn, step] = q.gather(1, column[drawn, None])[:, 0]
            token = self.support[column]
            tokens[:, step] = token
        return Proposal(tokens, torch.full_like(batch.lengths, chain), chosen, distributions, self.support)

    def select(self, rows: Tensor) -> None:
        if self._stored is not None:
            self._stored.select(rows)
            self._state = self._state[rows]

    def _step(self, batch: Batch, stored: KeyValues, token: Tensor, state: Tensor, position: Tensor) -> Tensor:
        """One draft row per batch row: its keys and values are stored, its output (rows, hidden) is returned."""
        queries, keys, values = self.draft.project(self._embed(token), state, position)
        rows = len(state)
        stored.write(_by_row(keys, rows), _by_row(values, rows), position[:, None])
        visible = int(position[batch.active].max()) + 1
        seen_keys, seen_values = stored.read(visible)
        attended = functional.scaled_dot_product_attention(
            _by_row(queries, rows),
            seen_keys,
            seen_values,
            attn_mask=slot_mask(position[:, None], visible).to(queries.dtype),
            enable_gqa=True,
        )
        return self.draft.finish(attended.flatten(1), state)

    def _embed(self, ids: Tensor) -> Tensor:
        if self.draft.embed_tokens is not None:
            return self.draft.embed_tokens(ids)
        return self.target.embed(ids).to(self.draft.fc.weight.dtype)


def _by_row(states: Tensor, rows: int) -> Tensor:
    """(rows·tokens, heads, head_dim) -> (rows, heads, tokens, head_dim)."""
    return states.unflatten(0, (rows, -1)).transpose(1, 2)
