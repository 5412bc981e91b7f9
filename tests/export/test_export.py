"""The exported draft: exact names, shapes and dtypes, and the same scores as the trained one within bf16 rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from schemas.errors import DraftError
from schemas.measures import TRAINING_CURVE
from schemas.sections import ExportSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_draft, write_checkpoint
from tasks.draft.foreign import read_foreign_config
from tasks.draft.model import Eagle3Draft
from tasks.draft.record import read_record
from tasks.export.task import export_draft, export_layout
from tests.rows import run_body
from tests.train.small import HIDDEN, VOCAB, small_config, small_draft

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


CURVE = [
    {"step": step, "kind": "simulated_acceptance", "position": position, "value": value}
    for step, values in ((0, (0.1, 0.0)), (40, (0.5, 0.25)))
    for position, value in enumerate(values)
]
TARGET = Shards(shards=(), facts={"model": "org/target", "revision": "abc", "architectures": ["LlamaForCausalLM"]})


def stored_draft(draft: Eagle3Draft) -> Shards:
    """What the training step leaves."""
    space = Workspace("train_draft/given.parquet")
    write_checkpoint(space.ensure_folder(), draft, torch.float32)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    space.add_table("curve", "curve.parquet", TRAINING_CURVE.table(CURVE), TRAINING_CURVE)
    return space.publish({"steps": 40})


def exported(draft: Eagle3Draft, name: str = "one", **spec: Any) -> Shards:
    return run_body(export_draft, stored_draft(draft), TARGET, ExportSpec(**spec), name=name)


def test_exported_tensors_have_these_names_shapes_and_dtypes(store: Path) -> None:
    tensors = load_file(exported(small_draft(torch.float32)).file("weights"))
    assert {name: (list(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} == LAYOUT


def test_d2t_holds_offsets_and_t2d_the_vocabulary(store: Path) -> None:
    draft = small_draft(torch.float32)
    tensors = load_file(exported(draft).file("weights"))
    ids = torch.arange(24) + tensors["d2t"]
    assert torch.equal(ids, draft.target_ids())
    assert torch.equal(tensors["t2d"].nonzero()[:, 0], ids)


def test_config_is_what_engines_read(store: Path) -> None:
    fields = json.loads(exported(small_draft(torch.float32)).file("config").read_bytes())
    assert fields["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (fields["model_type"], fields["num_hidden_layers"], fields["hidden_act"]) == ("llama", 1, "silu")
    assert (fields["vocab_size"], fields["draft_vocab_size"], fields["torch_dtype"]) == (VOCAB, 24, "bfloat16")
    assert fields["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]  # vLLM and llama.cpp: what these layers read
    assert fields["eagle_config"] == {
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],  # SGLang: what these layers give, if the first is 1
        "use_aux_hidden_state": True,
    }
    assert fields["rope_theta"] == 10000.0
    assert fields["tie_word_embeddings"] is False


def test_the_exported_draft_scores_like_the_trained_one(store: Path) -> None:
    trained = small_draft(torch.float32)
    served = load_draft(exported(trained))
    generator = torch.Generator().manual_seed(5)
    embedded, aux = torch.randn(6, HIDDEN, generator=generator), torch.randn(6, 3 * HIDDEN, generator=generator)

    def scores(draft: Eagle3Draft) -> torch.Tensor:
        state = draft.fuse(aux)
        _, _, values = draft.project(embedded, state, torch.arange(6))
        attended = values.repeat_interleave(2, dim=1).flatten(1)  # each row sees itself only
        return draft.logits(draft.finish(attended, state))

    right, found = scores(trained), scores(served)
    assert not torch.equal(right, found)
    assert (right - found).abs().max() < 0.03 * right.abs().max()


def test_two_exports_are_the_same_bytes(store: Path) -> None:
    draft = small_draft(torch.float32)
    assert exported(draft).digest() == exported(draft, name="again").digest()


def all_scores(draft: Eagle3Draft) -> torch.Tensor:
    """Three steps of three rows that each see themselves only."""
    generator = torch.Generator().manual_seed(5)
    state = draft.fuse(torch.randn(3, 3 * HIDDEN, generator=generator))
    scores = []
    for step in range(3):
        _, _, values = draft.project(torch.randn(3, HIDDEN, generator=generator), state, torch.arange(3) + step)
        state = draft.finish(values.repeat_interleave(2, dim=1).flatten(1), state)
        scores.append(draft.logits(state))
    return torch.stack(scores)


def test_what_is_read_back_scores_bit_for_bit_like_the_rounded_draft(store: Path) -> None:
    draft = small_draft(torch.float32)
    rounded = small_draft(torch.float32).bfloat16().float()
    rounded.set_vocabulary(draft.target_ids())
    for name, buffer in small_draft(torch.float32).rotary.named_buffers():
        setattr(rounded.rotary, name, buffer)
    assert torch.equal(all_scores(load_draft(exported(draft))), all_scores(rounded))


@pytest.mark.parametrize("layout", ["vllm", "speculators"])
def test_another_layout_holds_the_same_bytes_under_numbered_names(store: Path, layout: str) -> None:
    first = exported(small_draft(torch.float32))
    other = run_body(export_layout, first, TARGET, layout)
    ours, theirs = load_file(first.file("weights")), load_file(other.file("weights"))
    assert {name.replace("midlayer.", "layers.0.") for name in ours} == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(theirs[name.replace("midlayer.", "layers.0.")].view(torch.uint8), tensor.view(torch.uint8))
    config = read_foreign_config(json.loads(other.file("config").read_bytes()))
    assert config.readings(9)["input_to_layer"] == [1, 2, 3]
    assert config.at((1, 2, 3)) == load_draft(first).config.model_copy(update={"eos_token_id": None})


def test_a_speculators_config_says_what_vllm_needs(store: Path) -> None:
    other = run_body(export_layout, exported(small_draft(torch.float32)), TARGET, "speculators")
    fields = json.loads(other.file("config").read_bytes())
    assert fields["speculators_config"]["verifier"] == {
        "name_or_path": "org/target",
        "architectures": ["LlamaForCausalLM"],
    }
    assert fields["norm_before_residual"] is False  # vLLM takes true for this layout where it stands not
    assert (fields["transformer_layer_config"]["vocab_size"], fields["draft_vocab_size"]) == (VOCAB, 24)


def test_the_record_says_what_training_reached(store: Path) -> None:
    record = read_record(exported(small_draft(torch.float32)).file("record"))
    assert record is not None
    assert (record.target, record.target_revision, record.steps) == ("org/target", "abc", 40)
    assert (record.aux_layers, record.simulated_acceptance) == ((1, 2, 3), [0.5, 0.25])
    assert record.length(1) == 1.5


@pytest.mark.parametrize(
    ("change", "engine", "message"),
    [
        ({"norm_before_residual": True}, "sglang", "does not know norm_before_residual"),
        ({"aux_layers": (0, 2, 3)}, "sglang", "unless the first is 1"),
        ({"aux_layers": (2, 3, 4)}, "sglang", "unless the first is 1"),
        ({"draft_vocab_size": VOCAB}, "sglang", "whole vocabulary"),
        ({"draft_vocab_size": VOCAB}, "vllm", "no place for d2t"),
    ],
)
def test_a_draft_that_an_engine_would_misread_is_refused(
    store: Path, change: dict[str, Any], engine: str, message: str
) -> None:
    draft = Eagle3Draft(small_config(**change))
    draft.set_vocabulary(torch.arange(draft.config.draft_vocab_size))
    with pytest.raises(DraftError, match=message):
        exported(draft, engines=[engine])


def test_switches_that_both_engines_know_are_exported(store: Path) -> None:
    draft = Eagle3Draft(small_config(fc_norm=True, norm_output=True))
    draft.set_vocabulary(torch.arange(24))
    assert load_draft(exported(draft)).config.fc_norm
