"""Weights are found in one file or many, under either layout's names; what is torn, double or pickled is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from schemas.errors import DraftError
from tasks.draft.stored import INDEX, numbered_name, stored_tensors, weight_files

OURS = {"fc.weight": torch.ones(2, 3), "midlayer.mlp.up_proj.weight": torch.rand(4), "d2t": torch.arange(3)}


def write_sharded(folder: Path, files: dict[str, list[str]]) -> None:
    tensors = {numbered_name(name): tensor for name, tensor in OURS.items()}
    for file, names in files.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in files.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_one_file_is_read_as_it_is(tmp_path: Path) -> None:
    save_file(OURS, tmp_path / "model.safetensors")
    with stored_tensors(tmp_path) as found:
        assert found.names() == set(OURS)
        assert all(torch.equal(found.read(name), tensor) for name, tensor in OURS.items())
        assert found.shape("fc.weight") == (2, 3)


def test_shards_with_numbered_layers_come_under_our_names(tmp_path: Path) -> None:
    shards = {"a.safetensors": ["fc.weight", "d2t"], "b.safetensors": ["layers.0.mlp.up_proj.weight"]}
    write_sharded(tmp_path, shards)
    assert [path.name for path in weight_files(tmp_path)] == [INDEX, "a.safetensors", "b.safetensors"]
    with stored_tensors(tmp_path) as found:
        assert all(torch.equal(found.read(name), tensor) for name, tensor in OURS.items())


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path, {"a.safetensors": ["fc.weight", "d2t"], "b.safetensors": ["layers.0.mlp.up_proj.weight"]})
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(DraftError, match=r"lacks b\.safetensors"):
        weight_files(tmp_path)


def test_a_tensor_that_only_the_index_has_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path, {"a.safetensors": ["fc.weight", "d2t"]})
    index = json.loads((tmp_path / INDEX).read_bytes())
    index["weight_map"]["norm.weight"] = "a.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(DraftError, match=r"lacks the tensors norm\.weight"), stored_tensors(tmp_path):
        pass


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(DraftError, match=r"pickled \(pytorch_model\.bin\)"):
        weight_files(tmp_path)


def test_an_empty_folder_holds_no_draft(tmp_path: Path) -> None:
    with pytest.raises(DraftError, match="holds no draft"):
        weight_files(tmp_path)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": "../model.safetensors"}}))
    with pytest.raises(DraftError, match="outside its folder"):
        weight_files(tmp_path)


def test_two_sets_of_weights_are_refused(tmp_path: Path) -> None:
    write_sharded(tmp_path, {"a.safetensors": ["fc.weight", "d2t"]})
    save_file(OURS, tmp_path / "model.safetensors")
    with pytest.raises(DraftError, match="holds both"):
        weight_files(tmp_path)


def test_names_of_both_layouts_in_one_file_are_refused(tmp_path: Path) -> None:
    save_file(OURS | {"layers.0.mlp.up_proj.weight": torch.rand(4)}, tmp_path / "model.safetensors")
    with pytest.raises(DraftError, match="not clear which"), stored_tensors(tmp_path):
        pass


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    save_file(OURS, tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DraftError, match="cannot be read"), stored_tensors(tmp_path):
        pass
