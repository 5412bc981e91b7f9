"""Checkpoints are read strictly: every wrong tensor is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas.errors import DraftError
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_checkpoint, write_checkpoint
from tasks.draft.config import SWITCHES
from tests.train.small import small_draft

Tensors = dict[str, Tensor]


def test_float32_comes_back_exactly(tmp_path: Path) -> None:
    draft = small_draft(torch.float32)
    write_checkpoint(tmp_path, draft, torch.float32)
    found = load_checkpoint(tmp_path)
    assert found.config == draft.config
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in draft.state_dict().items())


def test_bf16_is_computed_in_float32(tmp_path: Path) -> None:
    draft = small_draft(torch.float32)
    write_checkpoint(tmp_path, draft, torch.bfloat16)
    found = load_checkpoint(tmp_path)
    assert found.fc.weight.dtype == torch.float32
    assert torch.equal(found.fc.weight, draft.fc.weight.bfloat16().float())


def test_switches_and_a_narrower_draft_come_back(tmp_path: Path) -> None:
    draft = small_draft(torch.float32, hidden_size=10, fc_norm=True, norm_output=True, norm_before_residual=True)
    write_checkpoint(tmp_path, draft, torch.float32)
    fields = json.loads((tmp_path / CONFIG).read_bytes())
    assert (fields["fc_norm"], fields["norm_output"], fields["norm_before_residual"]) == (True, True, True)
    assert set(load_file(tmp_path / WEIGHTS)) > {"fc_norm.0.weight", "fc_norm.2.weight", "embed_tokens.weight"}
    found = load_checkpoint(tmp_path)
    assert found.config == draft.config
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in draft.state_dict().items())


def test_a_plain_draft_names_no_switch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, small_draft(torch.float32), torch.float32)
    assert not set(SWITCHES) & set(json.loads((tmp_path / CONFIG).read_bytes()))


def rename_layer(tensors: Tensors) -> None:
    tensors["layers.0.self_attn.q_proj.weight"] = tensors.pop("midlayer.self_attn.q_proj.weight")


def add_embeddings(tensors: Tensors) -> None:
    tensors["embed_tokens.weight"] = torch.zeros(61, 16)


def cut_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].clone()


def shorten_offsets(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"].int()


def use_absolute_ids(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (rename_layer, "lacks midlayer.self_attn.q_proj.weight"),
        (add_embeddings, "unknown tensors embed_tokens.weight"),
        (cut_head, r"lm_head.weight has shape \[23, 16\]"),
        (shorten_offsets, "d2t has dtype torch.int32"),
        (use_absolute_ids, "d2t holds the target ids themselves"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(tmp_path: Path, spoil: Callable[[Tensors], None], message: str) -> None:
    write_checkpoint(tmp_path, small_draft(torch.float32), torch.bfloat16)
    tensors = load_file(tmp_path / WEIGHTS)
    spoil(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(DraftError, match=message):
        load_checkpoint(tmp_path)


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, small_draft(torch.float32), torch.bfloat16)
    path = tmp_path / WEIGHTS
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DraftError, match="cannot be read"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_config_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    write_checkpoint(tmp_path, small_draft(torch.float32), torch.bfloat16)
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(DraftError, match=r"config\.json"):
        load_checkpoint(tmp_path)


def test_a_config_without_a_size_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, small_draft(torch.float32), torch.bfloat16)
    fields = json.loads((tmp_path / CONFIG).read_bytes())
    del fields["head_dim"]
    (tmp_path / CONFIG).write_text(json.dumps(fields))
    with pytest.raises(DraftError, match="head_dim"):
        load_checkpoint(tmp_path)


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    draft = small_draft(torch.float32)
    with torch.no_grad():
        draft.norm.weight[3] = float("inf")
    with pytest.raises(DraftError, match=r"norm\.weight"):
        write_checkpoint(tmp_path, draft, torch.bfloat16)
    assert list(tmp_path.iterdir()) == []
