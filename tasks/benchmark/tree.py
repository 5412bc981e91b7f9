"""Speculative decoding with a tree of drafts: several guesses per place, verified together, of which one path is kept.

The tree is EAGLE-2's (arXiv 2406.16858) as SGLang grows it: every step widens the `top_k` likeliest branches by `top_k`
each, and of all guesses the likeliest are verified. The target's own token decides at every branch, so the output is
the target's alone, whatever the tree holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.errors import EngineError
from tasks.benchmark.batch import Answer, Batch, DecodeSettings
from tasks.benchmark.cache import SlotCache
from tasks.benchmark.decode import prefill
from tasks.benchmark.drafters import EagleDrafter
from tasks.benchmark.verify import Uniforms, Verdict
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt
from tasks.target.sampling import draw


@dataclass(frozen=True)
class Tree:
    """The guesses of a batch, each row's parents before their children. Node 0 is the last known token."""

    tokens: Tensor  # int64 (rows, nodes), target ids; node 0 the last known token
    parents: Tensor  # int64 (rows, nodes), -1 of node 0
    depths: Tensor  # int64 (rows, nodes)

    def ancestry(self) -> Tensor:
        """Bool (rows, nodes, nodes): whether the second is the first or one of its ancestors."""
        rows, nodes = self.tokens.shape
        seen = torch.eye(nodes, dtype=torch.bool, device=self.tokens.device).repeat(rows, 1, 1)
        each = torch.arange(rows, device=self.tokens.device)
        for node in range(1, nodes):
            seen[:, node] |= seen[each, self.parents[:, node]]
        return seen


class TreeDrafter(EagleDrafter):
    """An EAGLE-3 draft that grows a tree.

    Args:
        draft: the draft.
        target: the model.
        top_k: branches per step.
        nodes: nodes that are verified, the last known token among them.
    """

    def __init__(self, draft: Eagle3Draft, target: Target, top_k: int, nodes: int) -> None:
        super().__init__(draft, target)
        self.top_k, self.nodes = min(top_k, len(self.support)), nodes

    def grow(self, batch: Batch) -> Tree:
        """The tree of each row; rows that are done may hold anything."""
        if self._stored is None:
            raise EngineError("the draft was asked for tokens before it saw the prompt")
        rows, k = len(batch.answers), self.top_k
        position = batch.lengths - 2
        last = batch.tokens.gather(1, position[:, None] + 1)[:, 0]
        state = self._step(batch, self._stored, last, self._state, position)
        scores, columns = self.draft.logits(state).float().softmax(dim=-1).topk(k)  # (rows, k)
        beams = _Beams(self.support[columns], scores, state[:, None].expand(-1, k, -1), [])
        found = _Candidates(beams.tokens, scores, torch.full_like(columns, -1))
        chosen = torch.arange(k, device=batch.device).expand(rows, -1)  # place of each beam among the candidates
        for step in range(1, batch.settings.chain):
            output, beams = self._widen(batch, beams, position + step)
            odds, columns = self.draft.logits(output).float().softmax(dim=-1).topk(k)  # (rows, k, k)
            reached = (beams.scores[..., None] * odds).flatten(1)
            start = found.tokens.shape[1]
            found = found.extended(self.support[columns].flatten(1), reached, chosen.repeat_interleave(k, dim=1))
            scores, best = reached.topk(k)
            chosen = start + best
            beams = beams.followed(best // k, found.tokens.gather(1, chosen), scores, output)
        return found.tree(last, self.nodes)

    def _widen(self, batch: Batch, beams: _Beams, position: Tensor) -> tuple[Tensor, _Beams]:
        """One draft row per beam: its output (rows, k, hidden), and the beams with its keys and values."""
        assert self._stored is not None
        rows, k = beams.tokens.shape
        flat = beams.states.flatten(0, 1)
        at = position.repeat_interleave(k)
        queries, keys, values = self.draft.project(self._embed(beams.tokens.flatten()), flat, at)
        queries, keys, values = (tensor.unflatten(0, (rows, k)) for tensor in (queries, keys, values))
        own = [*beams.own, (keys, values)]
        visible = int(batch.lengths[batch.active].max()) - 1
        shared_keys, shared_values = self._stored.read(visible)  # (rows, kv_heads, visible, head_dim)
        group, dim = queries.shape[2] // keys.shape[2], queries.shape[3]
        wide = [tensor.repeat_interleave(group, dim=1) for tensor in (shared_keys, shared_values)]
        scores = torch.einsum("rkhd,rhpd->rkhp", queries, wide[0])
        hidden = torch.arange(visible, device=batch.device) > batch.lengths[:, None] - 2
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        extra = [(queries * key.repeat_interleave(group, dim=2)).sum(-1, keepdim=True) for key, _ in own]
        weights = (torch.cat([scores, *extra], dim=-1) * dim**-0.5).softmax(dim=-1)
        attended = torch.einsum("rkhp,rhpd->rkhd", weights[..., :visible], wide[1])
        for number, (_, value) in enumerate(own):
            weight = weights[..., visible + number, None]
            attended = attended + weight * value.repeat_interleave(group, dim=2)
        output = self.draft.finish(attended.flatten(2).flatten(0, 1), flat).unflatten(0, (rows, k))
        return output, _Beams(beams.tokens, beams.scores, beams.states, own)


@dataclass(frozen=True)
class _Beams:
    """The branches that are widened next."""

    tokens: Tensor  # int64 (rows, k), target ids
    scores: Tensor  # (rows, k), the draft's probability of each branch
    states: Tensor  # (rows, k, hidden), outputs that feed them
    own: list[tuple[Tensor, Tensor]]  # keys and values of their own earlier steps, each (rows, k, kv_heads, head_dim)

    def followed(self, parents: Tensor, tokens: Tensor, scores: Tensor, outputs: Tensor) -> _Beams:
        """The branches one step on, each with what its parent has."""
        each = torch.arange(len(parents), device=parents.device)[:, None]
        own = [(keys[each, parents], values[each, parents]) for keys, values in self.own]
        return _Beams(tokens, scores, outputs[each, parents], own)


@dataclass(frozen=True)
class _Candidates:
    """All guesses so far, each (rows, count); a parent is a place in the same list, -1 the last known token."""

    tokens: Tensor
    scores: Tensor
    parents: Tensor

    def extended(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> _Candidates:
        """With those of one more step."""
        pairs = ((self.tokens, tokens), (self.scores, scores), (self.parents, parents))
        return _Candidates(*(torch.cat(pair, dim=1) for pair in pairs))

    def tree(self, last: Tensor, nodes: int) -> Tree:
        """The likeliest guesses; a child is never likelier than its parent, and of equals the parent comes first."""
        order = self.scores.sort(dim=1, descending=True, stable=True).indices
        kept = order[:, : nodes - 1].sort(dim=1).values
        rows, count = self.tokens.shape
        place = torch.zeros(rows, count + 1, dtype=torch.int64, device=last.device)  # of a candidate in the tree
        place.scatter_(1, kept + 1, torch.arange(1, kept.shape[1] + 1, device=last.device).expand(rows, -1))
        parents = place.gather(1, self.parents.gather(1, kept) + 1)
        depths = torch.ones_like(parents)
        for node in range(parents.shape[1]):
            above = parents[:, node] - 1
            below_root = above >= 0
            depths[below_root, node] = depths[below_root].gather(1, above[below_root, None])[:, 0] + 1
        root = torch.zeros_like(last)[:, None]
        return Tree(
            torch.cat([last[:, None], self.tokens.gather(1, kept)], dim=1),
            torch.cat([root - 1, parents], dim=1),
            torch.cat([root, depths], dim=1),
        )


@torch.no_grad()
def decode_tree(
    target: Target,
    drafter: TreeDrafter,
    prompts: Sequence[RenderedPrompt],
    settings: DecodeSettings,
    report: Callable[[int], None] = lambda ended: None,
) -> list[Answer]:
    """Decode prompts together, as `decode` does, with a tree per verify step; `settings.chain` is its depth.

    Raises:
        EngineError: the target's attention is not full.
    """
    batch = Batch(prompts, settings, "tree", target.device)
    answers = list(batch.answers)
    cache = SlotCache(target.model.config, batch.capacity + drafter.nodes)
    prefill(target, drafter, batch, cache, len(settings.temperatures))
    report(len(answers) - len(batch.active))
    while len(batch.active):
        before = len(batch.active)
        _step(target, drafter, batch, cache)
        report(before - len(batch.active))
    return answers


def _step(target: Target, drafter: TreeDrafter, batch: Batch, cache: SlotCache) -> None:
    """One verify step: node n of the tree stands at slot first + n until the kept path is moved together."""
    tree = drafter.grow(batch)
    first = batch.lengths - 1
    nodes = tree.tokens.shape[1]
    slots = first[:, None] + torch.arange(nodes, device=batch.device)
    visible = int(first[batch.active].max()) + nodes
    mask = cache.place_tree(slots, first, tree.ancestry(), visible).to(target.model.dtype)
    positions = first[:, None] + tree.depths
    aux, last = target.capture(tree.tokens, mask, positions, cache, aux_layers=drafter.aux_layers)
    verdict, path = judge(lambda rows, node: target.lm_head(last[rows, node]), tree, batch, batch.uniforms())
    each = torch.arange(len(path), device=batch.device)[:, None]
    cache.move(first[:, None] + path, slots[:, : path.shape[1]])
    batch.advance(verdict, torch.full_like(batch.lengths, nodes - 1))
    drafter.observe(batch, aux[each, path], first, verdict.emitted)


def judge(
    score: Callable[[Tensor, Tensor], Tensor], tree: Tree, batch: Batch, uniforms: Uniforms
) -> tuple[Verdict, Tensor]:
    """The target's own tokens along the tree, as far as the tree has them.

    Args:
        score: gives the target's logits (n, vocab) for n row numbers and their nodes.
        tree: the guesses.
        batch: whose temperatures and end ids count.
        uniforms: this step's random numbers.

    Returns:
        The verdict, and the kept path's nodes, int64 (rows, depth + 1), the last one repeated.
    """
    depth = batch.settings.chain
    count = len(batch.answers)
    tokens = tree.tokens.new_zeros(count, depth + 1)
    emitted, accepted = torch.zeros_like(batch.lengths), torch.zeros_like(batch.lengths)
    path = tree.tokens.new_zeros(count, depth + 1)
    node = torch.zeros_like(batch.lengths)
    rows = batch.active
    for level in range(depth + 1):
        token = _own_token(score(rows, node[rows]), batch, uniforms, rows, level)
        tokens[rows, level] = token
        emitted[rows] += 1
        fits = (tree.parents[rows] == node[rows, None]) & (tree.tokens[rows] == token[:, None])  # (n, nodes)
        kept = fits.any(dim=1)
        node[rows[kept]] = fits[kept].long().argmax(dim=1)
        accepted[rows[kept]] += 1
        if level < depth:
            path[:, level + 1 :] = node[:, None]
        ended = torch.isin(token, batch.end_ids)
        rows = rows[kept & ~ended]
        if not len(rows):
            break
    return Verdict(tokens, emitted, accepted), path


def _own_token(logits: Tensor, batch: Batch, uniforms: Uniforms, rows: Tensor, level: int) -> Tensor:
    token = logits.argmax(dim=-1)
    drawn = (batch.temperatures[rows] > 0).nonzero()[:, 0]
    if len(drawn):
        odds = (logits[drawn].float() / batch.temperatures[rows[drawn], None]).softmax(dim=-1)
        numbers = torch.cat([uniforms.accept, uniforms.final[:, None]], dim=1)
        token[drawn] = draw(odds, numbers[rows[drawn], level])
    return token
