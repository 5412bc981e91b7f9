"""A parent draft is taken over as it is, whatever its layout, or refused by the name of what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from schemas.errors import DraftError
from schemas.sections import ParentSpec
from tasks.artifacts.artifact import Shards
from tasks.draft.adoption import embedding_sha256
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_checkpoint, load_draft, write_checkpoint
from tasks.draft.place import locate_parent
from tasks.draft.record import RECORD, DraftRecord
from tasks.draft.stored import INDEX, numbered_name
from tasks.train.parent import adopt_parent
from tests.rows import run_body
from tests.train.small import HIDDEN, VOCAB, small_draft

LAYERS = 8
FACTS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_layers": LAYERS,
    "context": 4096,
    "eos_ids": [2, 3],
    "bos_id": 1,
    "pad_id": None,
}
TARGET = Shards(shards=(), facts=FACTS)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """The folder of a draft as another run exported it, in bf16."""
    folder = tmp_path / "given"
    folder.mkdir()
    write_checkpoint(folder, small_draft(torch.float32), torch.bfloat16)
    return folder


def taken_over(folder: Path, name: str = "one") -> Shards:
    spec = ParentSpec(model=str(folder))
    return run_body(adopt_parent, spec, locate_parent(spec), TARGET, name=name)


def fields_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / CONFIG).read_bytes())


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def as_numbered(folder: Path) -> None:
    rewrite(folder, lambda tensors: {numbered_name(name): tensor for name, tensor in tensors.items()})


def as_shards(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    parts = {"one.safetensors": sorted(tensors)[:6], "two.safetensors": sorted(tensors)[6:]}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in parts.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def as_speculators(folder: Path) -> None:
    as_numbered(folder)
    rewrite(folder, lambda tensors: tensors | {"embed_tokens.weight": torch.ones(VOCAB, HIDDEN).bfloat16()})
    fields = fields_of(folder)
    del fields["eagle_config"]
    changed = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": fields.pop("draft_vocab_size"),
        "target_hidden_size": fields.pop("target_hidden_size"),
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": fields.pop("eagle_aux_hidden_state_layer_ids"),
        "transformer_layer_config": fields,
    }
    (folder / CONFIG).write_text(json.dumps(changed))


CERTAIN = {"output_of_layer": [1, 2, 3]}  # its config has vLLM's ids and SGLang's
READ_TWICE = {"input_to_layer": [1, 2, 3], "output_of_layer": [2, 3, 4]}


@pytest.mark.parametrize(
    ("layout", "readings"),
    [(lambda folder: None, CERTAIN), (as_numbered, CERTAIN), (as_shards, CERTAIN), (as_speculators, READ_TWICE)],
)
def test_every_layout_gives_the_same_draft_byte_for_byte(
    store: Path, given: Path, layout: Callable[[Path], None], readings: dict[str, list[int]]
) -> None:
    before = load_file(given / WEIGHTS)
    layout(given)
    parent = taken_over(given)
    after = load_file(parent.file("weights"))
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert parent.facts["readings"] == readings
    assert parent.facts["full_vocabulary"] is False


def test_positions_and_control_ids_are_the_targets(store: Path, given: Path) -> None:
    (given / CONFIG).write_text(json.dumps(fields_of(given) | {"max_position_embeddings": 2048, "eos_token_id": 9}))
    config = load_draft(taken_over(given)).config
    assert (config.max_position_embeddings, config.eos_token_id, config.bos_token_id) == (4096, [2, 3], 1)


def test_a_record_says_for_certain_which_layers_fed_it(store: Path, given: Path) -> None:
    record = DraftRecord(target="tiny", aux_layers=(1, 2, 3), simulated_acceptance=[0.5, 0.25, 0.125], steps=9)
    (given / RECORD).write_bytes(record.to_bytes())
    parent = taken_over(given)
    assert parent.facts["readings"] == {"recorded": [1, 2, 3]}
    assert parent.facts["recorded"]["simulated_acceptance"] == [0.5, 0.25, 0.125]
    (given / RECORD).write_bytes(record.model_copy(update={"aux_layers": (0, 2, 3)}).to_bytes())
    with pytest.raises(DraftError, match="belongs to another draft"):
        taken_over(given, "other")
    (given / RECORD).write_text("{")
    with pytest.raises(DraftError, match=r"eyas\.json is damaged"):
        taken_over(given, "torn")


def test_a_draft_without_mapping_has_the_whole_vocabulary(store: Path, given: Path) -> None:
    def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        head = torch.rand(VOCAB, HIDDEN).bfloat16()
        return {n: t for n, t in tensors.items() if n not in ("d2t", "t2d")} | {"lm_head.weight": head}

    rewrite(given, whole)
    fields = fields_of(given)
    del fields["draft_vocab_size"]
    (given / CONFIG).write_text(json.dumps(fields))
    parent = taken_over(given)
    assert parent.facts["full_vocabulary"] is True
    assert load_draft(parent).target_ids().tolist() == list(range(VOCAB))


def test_embeddings_are_known_by_their_bytes(store: Path, given: Path) -> None:
    embedding = torch.rand(VOCAB, HIDDEN).bfloat16()
    rewrite(given, lambda tensors: tensors | {"embed_tokens.weight": embedding})
    assert taken_over(given).facts["embedding_sha256"] == embedding_sha256(embedding.float())


def without_gate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if "gate" not in name}


def with_bias(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"midlayer.self_attn.q_proj.bias": torch.zeros(24)}


def with_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"draft_model.{name}": tensor for name, tensor in tensors.items()}


def absolute(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"d2t": tensors["d2t"] + torch.arange(24)}


def repeated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"d2t": -torch.arange(24) + (torch.arange(24) + tensors["d2t"])[[0, *range(1, 23), 0]]}


def other_mapping(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"t2d": ~tensors["t2d"]}


def small_offsets(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"d2t": tensors["d2t"].int()}


def without_map(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name != "t2d"}


def mixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors | {"norm.weight": tensors["norm.weight"].float()}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_gate, r"lacks the tensors midlayer\.mlp\.gate_proj\.weight"),
        (without_map, "lacks the tensors t2d"),
        (with_bias, r"q_proj\.bias"),
        (with_prefix, "lacks the tensors d2t, fc.weight"),
        (absolute, "target ids themselves, and offsets are expected"),
        (repeated, "contradict each other"),
        (other_mapping, "contradict each other"),
        (small_offsets, "d2t has dtype"),
        (mixed, "mixes the dtypes"),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    store: Path, given: Path, spoil: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    rewrite(given, spoil)
    with pytest.raises(DraftError, match=message):
        taken_over(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 62}, "another target: its vocab_size is 62"),
        ({"target_hidden_size": 24}, "another target: its target_hidden_size is 24"),
        ({"intermediate_size": 24}, r"down_proj\.weight has shape \[16, 20\], config\.json says \[16, 24\]"),
    ],
)
def test_a_draft_of_another_shape_is_refused(store: Path, given: Path, change: dict[str, Any], message: str) -> None:
    (given / CONFIG).write_text(json.dumps(fields_of(given) | change))
    with pytest.raises(DraftError, match=message):
        taken_over(given)


def test_a_hub_id_needs_a_revision_and_a_path_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DraftError, match=r"parent\.revision"):
        locate_parent(ParentSpec(model="AQ-MedAI/Kimi-K25-eagle3"))
    with pytest.raises(DraftError, match="not a folder"):
        locate_parent(ParentSpec(model=str(tmp_path / "none")))
    with pytest.raises(DraftError, match=r"has no config\.json"):
        locate_parent(ParentSpec(model=str(tmp_path)))


def test_what_was_taken_over_computes_the_same(store: Path, given: Path) -> None:
    found, original = load_draft(taken_over(given)), load_checkpoint(given)
    aux = torch.randn(5, 3 * HIDDEN)
    assert torch.equal(found.logits(found.fuse(aux)), original.logits(original.fuse(aux)))
