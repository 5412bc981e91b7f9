"""A target folder is known by its content, and one that cannot be a target is refused with the reason."""

import json
import shutil
from pathlib import Path

import pytest

from schemas.errors import TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target.place import target_folder
from tasks.target.source import locate_target
from tasks.target.task import adopt_folder


@pytest.fixture
def copy(tiny_target: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_target, tmp_path / tiny_target.name)


def adopt(folder: Path) -> Shards:
    spec = TargetSpec(model=str(folder))
    return adopt_folder(spec, locate_target(spec))


def test_the_facts_are_those_of_the_model(tiny_artifact: Shards) -> None:
    facts = tiny_artifact.facts
    assert (facts["num_layers"], facts["hidden_size"], facts["vocab_size"]) == (7, 64, 49152)
    assert (facts["num_attention_heads"], facts["num_key_value_heads"], facts["head_dim"]) == (4, 2, 16)
    assert (facts["bos_id"], facts["eos_id"], facts["pad_id"], facts["eos_ids"]) == (1, 2, 2, [2])
    assert facts["special_ids"] == list(range(17))
    assert (facts["token_format"], facts["reply_ids"], facts["template_switches"]) == ("plain", [2], {})
    assert facts["context"] == 1024
    assert facts["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}


def test_a_moved_folder_is_the_same_target(tiny_artifact: Shards, copy: Path) -> None:
    assert adopt(copy).digest() == tiny_artifact.digest()


def test_other_weights_are_another_target(tiny_artifact: Shards, copy: Path) -> None:
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert adopt(copy).digest() != tiny_artifact.digest()


def test_other_template_switches_are_another_target(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{{ messages[0].content }}{{ thinking }}")
    specs = [TargetSpec(model=str(copy), template_switches={"thinking": value}) for value in (False, True)]
    first, second = (adopt_folder(spec, locate_target(spec)) for spec in specs)
    assert first.digest() != second.digest()


def test_a_folder_without_chat_template_is_refused(copy: Path) -> None:
    settings = json.loads((copy / "tokenizer_config.json").read_bytes())
    del settings["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TargetError, match="has no chat template: use an instruction-tuned model"):
        adopt(copy)


@pytest.mark.parametrize("name", ["logits_scaling", "logit_scale", "final_logit_softcapping"])
def test_a_target_that_changes_its_scores_after_the_head_is_refused(copy: Path, name: str) -> None:
    config = json.loads((copy / "config.json").read_bytes())
    (copy / "config.json").write_text(json.dumps(config | {name: 8.0}))
    with pytest.raises(TargetError, match=f"has {name}"):
        adopt(copy)


def test_a_damaged_generation_config_is_named(copy: Path) -> None:
    (copy / "generation_config.json").write_text("{")
    with pytest.raises(TargetError, match="cannot be loaded as a Hugging Face model"):
        adopt(copy)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", r"has no \*.safetensors weights"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_by_name(copy: Path, missing: str, message: str) -> None:
    (copy / missing).unlink()
    with pytest.raises(TargetError, match=message):
        adopt(copy)


def test_a_folder_with_two_sets_of_weights_is_refused(copy: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    (copy / "model-00001-of-00001.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    with pytest.raises(TargetError, match="it is not clear which weights are meant"):
        adopt(copy)


def test_an_unfinished_download_is_refused_by_the_shard_that_is_missing(copy: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TargetError, match=r"lacks model-00002-of-00002\.safetensors"):
        locate_target(TargetSpec(model=str(copy)))


def test_a_path_that_is_no_folder_is_refused() -> None:
    with pytest.raises(TargetError, match="not a folder"):
        locate_target(TargetSpec(model="./nowhere"))


def test_a_target_that_changed_after_it_was_prepared_is_not_loaded(copy: Path) -> None:
    artifact = adopt(copy)
    (copy / "generation_config.json").write_text('{"eos_token_id": 7}')
    with pytest.raises(TargetError, match="changed since it was prepared"):
        target_folder(artifact, TargetSpec(model=str(copy)))
