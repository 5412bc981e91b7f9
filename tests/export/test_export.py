"""The exported draft: exact names, shapes and dtypes, and the same scores as the trained one within bf16 rounding."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_draft, write_checkpoint
from tasks.draft.model import Eagle3Draft
from tasks.export.task import export_draft
from tests.rows import run_body
from tests.train.small import HIDDEN, VOCAB, small_draft

# name: (shape, dtype) of a draft with hidden 16, 4 heads and 2 key-value heads of 6, MLP 20, 24 of 61 tokens
LAYOUT = {
    "fc.weight": ([16, 48], torch.bfloat16),
    "midlayer.input_layernorm.weight": ([16], torch.bfloat16),
    "midlayer.hidden_norm.weight": ([16], torch.bfloat16),
    "midlayer.self_attn.q_proj.weight": ([24, 32], torch.bfloat16),
    "midlayer.self_attn.k_proj.weight": ([12, 32], torch.bfloat16),
    "midlayer.self_attn.v_proj.weight": ([12, 32], torch.bfloat16),
    "midlayer.self_attn.o_proj.weight": ([16, 24], torch.bfloat16),
    "midlayer.post_attention_layernorm.weight": ([16], torch.bfloat16),
    "midlayer.mlp.gate_proj.weight": ([20, 16], torch.bfloat16),
    "midlayer.mlp.up_proj.weight": ([20, 16], torch.bfloat16),
    "midlayer.mlp.down_proj.weight": ([16, 20], torch.bfloat16),
    "norm.weight": ([16], torch.bfloat16),
    "lm_head.weight": ([24, 16], torch.bfloat16),
    "d2t": ([24], torch.int64),
    "t2d": ([61], torch.bool),
}


def stored_draft(draft: Eagle3Draft) -> Shards:
    """What the training step leaves."""
    space = Workspace("train_draft/given.parquet")
    write_checkpoint(space.ensure_folder(), draft, torch.float32)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    return space.publish()


def test_exported_tensors_have_these_names_shapes_and_dtypes(store: Path) -> None:
    tensors = load_file(run_body(export_draft, stored_draft(small_draft(torch.float32))).file("weights"))
    assert {name: (list(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} == LAYOUT


def test_d2t_holds_offsets_and_t2d_the_vocabulary(store: Path) -> None:
    draft = small_draft(torch.float32)
    tensors = load_file(run_body(export_draft, stored_draft(draft)).file("weights"))
    ids = torch.arange(24) + tensors["d2t"]
    assert torch.equal(ids, draft.target_ids())
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)


def test_config_is_what_engines_read(store: Path) -> None:
    fields = json.loads(run_body(export_draft, stored_draft(small_draft(torch.float32))).file("config").read_bytes())
    assert fields["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (fields["model_type"], fields["num_hidden_layers"], fields["hidden_act"]) == ("llama", 1, "silu")
    assert (fields["vocab_size"], fields["draft_vocab_size"], fields["torch_dtype"]) == (VOCAB, 24, "bfloat16")
    assert fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert fields["rope_theta"] == 10000.0
    assert fields["tie_word_embeddings"] is False


def test_the_exported_draft_scores_like_the_trained_one(store: Path) -> None:
    trained = small_draft(torch.float32)
    exported = load_draft(run_body(export_draft, stored_draft(trained)))
    generator = torch.Generator().manual_seed(5)
    embedded, aux = torch.randn(6, HIDDEN, generator=generator), torch.randn(6, 3 * HIDDEN, generator=generator)

    def scores(draft: Eagle3Draft) -> torch.Tensor:
        state = draft.fuse(aux)
        _, _, values = draft.project(embedded, state, torch.arange(6))
        attended = values.repeat_interleave(2, dim=1).flatten(1)  # each row sees itself only
        return draft.logits(draft.finish(attended, state))

    right, found = scores(trained), scores(exported)
    assert not torch.equal(right, found)
    assert (right - found).abs().max() < 0.03 * right.abs().max()


def test_two_exports_are_the_same_bytes(store: Path) -> None:
    draft = stored_draft(small_draft(torch.float32))
    assert run_body(export_draft, draft).digest() == run_body(export_draft, draft, name="again").digest()
