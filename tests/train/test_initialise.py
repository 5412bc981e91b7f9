"""The draft's first weights and the auxiliary scales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from schemas.errors import DraftError
from schemas.sections import DraftSpec
from tasks.artifacts.artifact import Shards
from tasks.target.model import Target
from tasks.train.aux_scale import as_columns, fold, measure_aux_scale, unfold
from tasks.train.initialise import draft_config, fresh_draft, narrow_embedding, take_from_target
from tasks.train.loader import SequenceStore
from tasks.train.sequence import Sequence
from tests.train.small import random_sequence, small_config, small_draft
from tests.train.states import stored_states

IDS = torch.arange(0, 400, 4)


def test_sizes_come_from_the_target_unless_the_recipe_names_them(tiny_artifact: Shards) -> None:
    config = draft_config(tiny_artifact.facts, DraftSpec(), 100, [1, 2, 3])
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads) == (64, 4, 2)
    assert (config.vocab_size, config.draft_vocab_size, config.eos_token_id) == (49152, 100, 2)
    assert config.aux_layers == (1, 2, 3)
    wider = draft_config(tiny_artifact.facts, DraftSpec(intermediate_size=96, num_key_value_heads=4), 100, [1, 2, 3])
    assert (wider.intermediate_size, wider.num_key_value_heads) == (96, 4)


def test_heads_that_do_not_divide_are_an_error(tiny_artifact: Shards) -> None:
    with pytest.raises(DraftError, match="num_key_value_heads"):
        draft_config(tiny_artifact.facts, DraftSpec(num_attention_heads=3), 100, [1, 2, 3])
    with pytest.raises(ValidationError):
        draft_config(tiny_artifact.facts, DraftSpec(), 100, [1, 2])


def test_fresh_weights_depend_on_the_seed_only() -> None:
    one, same, other = (fresh_draft(small_config(), torch.arange(24), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
    assert torch.equal(one["norm.weight"], torch.ones(16))


def test_the_last_layer_reads_the_state_half_of_the_input(tiny_loaded: Target, tiny_artifact: Shards) -> None:
    config = draft_config(tiny_artifact.facts, DraftSpec(), len(IDS), [1, 2, 3])
    draft = fresh_draft(config, IDS, 0)
    before = draft.midlayer.self_attn.q_proj.weight[:, :64].clone()
    last = tiny_loaded.layers[-1].state_dict()
    norm, head = torch.rand(64), tiny_loaded.model.get_output_embeddings().weight
    take_from_target(draft, last, norm, head)
    attention = draft.midlayer.self_attn
    assert torch.equal(attention.q_proj.weight[:, 64:], last["self_attn.q_proj.weight"])
    assert torch.equal(attention.q_proj.weight[:, :64], before)
    assert torch.equal(draft.midlayer.hidden_norm.weight, last["input_layernorm.weight"])
    assert torch.equal(draft.midlayer.mlp.up_proj.weight, last["mlp.up_proj.weight"])
    torch.testing.assert_close(draft.midlayer.mlp.down_proj.weight, last["mlp.down_proj.weight"] * 0.02)
    torch.testing.assert_close(attention.o_proj.weight, last["self_attn.o_proj.weight"] * 0.02)
    assert torch.equal(draft.norm.weight, norm)
    assert torch.equal(draft.lm_head.weight, head[IDS])


def test_parts_that_do_not_fit_stay_random(
    tiny_loaded: Target, tiny_artifact: Shards, caplog: pytest.LogCaptureFixture
) -> None:
    config = draft_config(tiny_artifact.facts, DraftSpec(intermediate_size=96), len(IDS), [1, 2, 3])
    draft, untouched = fresh_draft(config, IDS, 0), fresh_draft(config, IDS, 0)
    last = tiny_loaded.layers[-1].state_dict()
    with caplog.at_level("INFO", "eyas.train"):
        take_from_target(draft, last, torch.ones(64), tiny_loaded.model.get_output_embeddings().weight)
    assert torch.equal(draft.midlayer.mlp.up_proj.weight, untouched.midlayer.mlp.up_proj.weight)
    assert torch.equal(draft.midlayer.mlp.down_proj.weight, untouched.midlayer.mlp.down_proj.weight)
    torch.testing.assert_close(draft.midlayer.self_attn.o_proj.weight, last["self_attn.o_proj.weight"] * 0.02)
    assert "gate_proj, up_proj, down_proj" in caplog.text


def test_scales_bring_each_state_to_unit_size_without_the_first_token(store: Path) -> None:
    sequences = []
    for seed in range(4):
        plain = random_sequence(4, 30, seed)
        aux = plain.aux.float().view(34, 3, 16) * torch.tensor([3.0, 7.0, 20.0])[:, None]
        aux[0] *= 1000
        sequences.append(Sequence(plain.token_ids, aux.view(34, 48).bfloat16(), plain.last, 3, 4))
    scale = measure_aux_scale(SequenceStore([stored_states(sequences, "scaled")], "train"))
    assert scale == pytest.approx([1 / 3, 1 / 7, 1 / 20], rel=0.05)


def test_a_folded_draft_reads_raw_states() -> None:
    draft, scale = small_draft(torch.float32), [0.5, 0.1, 0.03]
    aux = torch.randn(5, 48)
    scaled = draft.fuse(aux * as_columns(scale, draft))
    before = draft.fc.weight.clone()
    fold(draft, scale)
    torch.testing.assert_close(draft.fuse(aux), scaled)
    unfold(draft, scale)
    torch.testing.assert_close(draft.fc.weight, before)


def test_the_recipe_turns_switches_on_and_makes_the_draft_narrower(tiny_artifact: Shards) -> None:
    spec = DraftSpec(hidden_size=32, head_dim=8, fc_norm=True, norm_output=True, norm_before_residual=True)
    config = draft_config(tiny_artifact.facts, spec, 100, [1, 2, 3])
    assert (config.hidden_size, config.target_hidden_size, config.head_dim) == (32, 64, 8)
    assert config.fc_norm
    assert config.norm_output
    assert config.norm_before_residual
    assert config.owns_embedding


def test_a_rotary_embedding_that_depends_on_the_length_is_refused(tiny_artifact: Shards) -> None:
    facts = tiny_artifact.facts | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    with pytest.raises(DraftError, match="dynamic"):
        draft_config(facts, DraftSpec(), 100, [1, 2, 3])


def test_narrow_embeddings_keep_what_tells_tokens_apart() -> None:
    plane = torch.randn(50, 3) @ torch.randn(3, 8)  # only three directions hold anything
    narrow = narrow_embedding(plane, 3)
    torch.testing.assert_close(narrow @ narrow.T, plane @ plane.T, rtol=1e-4, atol=1e-4)
    assert torch.equal(narrow, narrow_embedding(plane, 3))
    with pytest.raises(DraftError, match=r"draft\.hidden_size is 9"):
        narrow_embedding(plane, 9)
