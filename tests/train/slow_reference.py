"""The training-time test written from the algorithm: one row at a time, one step at a time, no masks, no batches.

It shares no code with eyas but the names of the weights, so that an error in one is not repeated in the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Outcome:
    """What the reference computes for one batch."""

    loss: Tensor  # scalar with gradient
    step_losses: list[float]  # mean cross-entropy
    hits: list[int]
    counts: list[int]
    outputs: dict[tuple[int, int, int], Tensor]  # (sequence, row, step) -> layer output (hidden,)


def reference(
    weights: dict[str, Tensor],
    sequences: list[tuple[Tensor, Tensor, Tensor, int, int]],
    embedding: Tensor,
    teacher_head: Tensor,
    aux_scale: Tensor,
    steps: int,
    decay: float,
    heads: int,
    kv_heads: int,
    eps: float,
    theta: float,
    switches: frozenset[str] = frozenset(),
) -> Outcome:
    """Loss and outputs of a batch; `sequences` are (token_ids, aux, last, last_from, prompt_length)."""
    layer = _Layer(weights, heads, kv_heads, eps, theta, switches)
    sums: list[Tensor] = [torch.zeros((), dtype=embedding.dtype) for _ in range(steps)]
    hits, counts, outputs = [0] * steps, [0] * steps, {}
    for number, (ids, aux, last, last_from, prompt_length) in enumerate(sequences):
        length = len(ids)
        completion = [position >= prompt_length for position in range(length)]

        # Step 0 writes a key for every row whose input token is known and whose guess lies inside the sequence.
        fused = {t: layer.fuse(aux[t].to(embedding.dtype) * aux_scale) for t in range(length - 2)}
        first_keys = {t: layer.key_value(embedding[ids[t + 1]], fused[t], t) for t in range(length - 2)}

        for row in range(length - 2):
            if not completion[row + 1]:
                continue  # the engine never drafts from here
            state, own = fused[row], []
            for step in range(steps):
                guessed = row + 2 + step
                if guessed >= length or not completion[guessed]:
                    break
                token = embedding[ids[row + 1 + step]]
                if step:
                    own.append(layer.key_value(token, state, row + step))
                seen = [first_keys[t] for t in range(row + 1)] + own
                state = layer.output(token, state, row + step, seen)
                outputs[number, row, step] = state
                read = state if "norm_output" in switches else layer.norm(state, "norm.weight")
                scores = weights["lm_head.weight"] @ read
                teacher_scores = teacher_head @ last[row + 1 + step - last_from].to(embedding.dtype)
                wanted = torch.exp(teacher_scores - torch.logsumexp(teacher_scores, 0))
                sums[step] = sums[step] - (wanted * (scores - torch.logsumexp(scores, 0))).sum()
                hits[step] += int(scores.argmax() == teacher_scores.argmax())
                counts[step] += 1

    factors = [decay**step for step in range(steps)]
    means = [total / count if count else total for total, count in zip(sums, counts, strict=True)]
    loss = sum((f * mean for f, mean in zip(factors, means, strict=True)), torch.zeros(())) / sum(factors)
    return Outcome(loss, [float(mean.detach()) for mean in means], hits, counts, outputs)


class _Layer:
    def __init__(
        self, weights: dict[str, Tensor], heads: int, kv_heads: int, eps: float, theta: float, switches: frozenset[str]
    ) -> None:
        self.w, self.heads, self.kv_heads, self.eps, self.theta = weights, heads, kv_heads, eps, theta
        self.switches = switches

    def fuse(self, aux: Tensor) -> Tensor:
        if "fc_norm" in self.switches:
            low, mid, high = aux.chunk(3)
            normed = (self.norm(state, f"fc_norm.{n}.weight") for n, state in enumerate((low, mid, high)))
            aux = torch.cat(list(normed))
        return self.w["fc.weight"] @ aux

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean() + self.eps) * self.w[name]

    def key_value(self, token: Tensor, state: Tensor, position: int) -> tuple[list[Tensor], list[Tensor]]:
        x = self._input(token, state)
        keys = self._heads("midlayer.self_attn.k_proj.weight", x, self.kv_heads)
        values = self._heads("midlayer.self_attn.v_proj.weight", x, self.kv_heads)
        return [self._rotate(key, position) for key in keys], values

    def output(self, token: Tensor, state: Tensor, position: int, seen: list) -> Tensor:
        queries = self._heads("midlayer.self_attn.q_proj.weight", self._input(token, state), self.heads)
        attended = []
        for head, query in enumerate(queries):
            shared = head // (self.heads // self.kv_heads)
            turned = self._rotate(query, position)
            scores = torch.stack([torch.dot(turned, keys[shared]) for keys, _ in seen]) / math.sqrt(len(query))
            shares = torch.softmax(scores, 0)
            attended.append(sum(share * values[shared] for share, (_, values) in zip(shares, seen, strict=True)))
        residual = state
        if "norm_before_residual" in self.switches:
            residual = self.norm(state, "midlayer.hidden_norm.weight")
        hidden = self.w["midlayer.self_attn.o_proj.weight"] @ torch.cat(attended) + residual
        x = self.norm(hidden, "midlayer.post_attention_layernorm.weight")
        gate, up = self.w["midlayer.mlp.gate_proj.weight"] @ x, self.w["midlayer.mlp.up_proj.weight"] @ x
        output = self.w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up) + hidden
        return self.norm(output, "norm.weight") if "norm_output" in self.switches else output

    def _input(self, token: Tensor, state: Tensor) -> Tensor:
        return torch.cat(
            [self.norm(token, "midlayer.input_layernorm.weight"), self.norm(state, "midlayer.hidden_norm.weight")]
        )

    def _heads(self, name: str, x: Tensor, heads: int) -> list[Tensor]:
        return list((self.w[name] @ x).chunk(heads))

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        half = len(x) // 2
        angles = torch.tensor([position * self.theta ** (-2 * j / len(x)) for j in range(half)], dtype=x.dtype)
        cos, sin = torch.cos(angles), torch.sin(angles)
        return torch.cat([x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin])
