"""The EAGLE-3 draft: three auxiliary states, fc, one decoder layer, own norm and head over a draft vocabulary.

Only the mathematics of one step; the training-time test (tasks/train) and the decoding loop (tasks/benchmark) decide
which keys a row may see. Parameter names are those of SGLang checkpoints. Source: EAGLE-3, arXiv 2503.01840.

    g   = fc(concat(low, mid, high))                    first step; later steps: g = the previous step's output
    x   = concat(input_layernorm(embedding), hidden_norm(g))
    h   = o_proj(attention(x)) + g
    out = mlp(post_attention_layernorm(h)) + h
    logits = lm_head(norm(out))

Three switches of the config change it: fc_norm normalises low, mid and high before fc; norm_before_residual adds
hidden_norm(g) in place of g; norm_output feeds norm(out) to the next step in place of out (EAGLE-3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tasks.draft.config import DraftConfig
from tasks.draft.linear import Linear


class RmsNorm(nn.RMSNorm):
    """A norm whose weight follows its input's type, as autocast makes it, so that one kernel does it."""

    def forward(self, x: Tensor) -> Tensor:  # (..., n) -> (..., n)
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Projections of the draft's attention; its input is 2·hidden wide."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        width, heads, kv_heads, dim = (
            2 * config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = Linear(width, heads * dim)
        self.k_proj = Linear(width, kv_heads * dim)
        self.v_proj = Linear(width, kv_heads * dim)
        self.o_proj = Linear(heads * dim, config.hidden_size)


class Mlp(nn.Module):
    """Gated SiLU feed-forward."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:  # (..., hidden) -> (..., hidden)
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """The parameters of the one decoder layer."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = Mlp(config)


class Eagle3Draft(nn.Module):
    """An EAGLE-3 draft. Token embeddings are the target's and no part of it, unless the draft has another width.

    Buffers: `d2t` int64 (draft_vocab,), offset to add to a draft id to get the target id; `t2d` bool (vocab,), true
    where the target id is in the draft vocabulary.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = Linear(3 * config.target_hidden_size, config.hidden_size)
        self.fc_norm = (
            nn.ModuleList(RmsNorm(config.target_hidden_size, eps=config.rms_norm_eps) for _ in config.aux_layers)
            if config.fc_norm
            else None
        )
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if config.owns_embedding else None
        self.midlayer = DecoderLayer(config)
        self.norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.draft_vocab_size)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = LlamaRotaryEmbedding(_rotary_config(config))

    def set_vocabulary(self, target_ids: Tensor) -> None:
        """Fill `d2t` and `t2d` from the ascending target ids of the draft vocabulary, int64 (draft_vocab,)."""
        self.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        self.t2d.zero_()
        self.t2d[target_ids] = True

    def target_ids(self) -> Tensor:
        """The target id of each draft id, int64 (draft_vocab,)."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, aux: Tensor) -> Tensor:
        """The first step's state from the auxiliary states: (..., 3·target_hidden) -> (..., hidden)."""
        if self.fc_norm is not None:
            states = aux.chunk(len(self.fc_norm), dim=-1)
            aux = torch.cat([norm(state) for norm, state in zip(self.fc_norm, states, strict=True)], dim=-1)
        return self.fc(aux)

    def embedding(self, target: Tensor) -> Tensor:
        """The token embeddings that the draft reads, (vocab, hidden): the target's unless it has its own."""
        return target if self.embed_tokens is None else self.embed_tokens.weight

    def project(self, embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, rotated to their positions.

        Args:
            embedded: token embeddings, (rows, hidden).
            state: fused or fed-back states, (rows, hidden).
            positions: int64 (rows,).

        Returns:
            queries (rows, heads, head_dim), keys and values (rows, kv_heads, head_dim).
        """
        x = torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(state)], dim=-1)
        attention, dim = self.midlayer.self_attn, self.config.head_dim
        queries = attention.q_proj(x).unflatten(-1, (-1, dim))
        keys = attention.k_proj(x).unflatten(-1, (-1, dim))
        values = attention.v_proj(x).unflatten(-1, (-1, dim))
        return self.rotate(queries, positions), self.rotate(keys, positions), values

    def project_keys(self, embedded: Tensor, state: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values only, for rows that nothing is asked of; shapes as `project`."""
        x = torch.cat([self.midlayer.input_layernorm(embedded), self.midlayer.hidden_norm(state)], dim=-1)
        attention, dim = self.midlayer.self_attn, self.config.head_dim
        keys = attention.k_proj(x).unflatten(-1, (-1, dim))
        return self.rotate(keys, positions), attention.v_proj(x).unflatten(-1, (-1, dim))

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of (rows, heads, head_dim) at int64 (rows,) positions."""
        cos, sin = self.rotary(x, positions[None])  # (1, rows, head_dim)
        cos, sin = cos[0, :, None], sin[0, :, None]
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    def finish(self, attended: Tensor, state: Tensor) -> Tensor:
        """What the next step is fed with: (rows, heads·head_dim) and (rows, hidden) -> (rows, hidden)."""
        residual = self.midlayer.hidden_norm(state) if self.config.norm_before_residual else state
        hidden = self.midlayer.self_attn.o_proj(attended) + residual
        output = self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden)) + hidden
        return self.norm(output) if self.config.norm_output else output

    def head_input(self, output: Tensor) -> Tensor:
        """What lm_head reads of what `finish` gave: (..., hidden) -> (..., hidden)."""
        return output if self.config.norm_output else self.norm(output)

    def logits(self, output: Tensor) -> Tensor:
        """Scores over the draft vocabulary: (..., hidden) -> (..., draft_vocab)."""
        return self.lm_head(self.head_input(output))


def _rotary_config(config: DraftConfig) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=config.num_attention_heads * config.head_dim,  # only head_dim is read, but they must divide
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
    )
