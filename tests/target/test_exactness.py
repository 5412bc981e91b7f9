"""A target is refused before anything is spent where its switches, ids or prompts are not what its format knows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from schemas.errors import TargetError, TokenFormatError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.formats.format import Fault
from tasks.target.decoding import decode
from tasks.target.model import load_target
from tasks.target.rendering import Renderer
from tasks.target.source import locate_target
from tasks.target.task import adopt_folder
from tests.kimi_templates import KIMI_TEMPLATE
from tests.tokenizers import folder

OPEN, CLOSE, END = 163606, 163607, 163586


@pytest.fixture(scope="module")
def kimi_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama with Kimi's real vocabulary, and a template like K2.5's."""
    place = tmp_path_factory.mktemp("kimi")
    config = LlamaConfig(
        vocab_size=163840,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=163584,
        eos_token_id=END,
        pad_token_id=163839,
    )
    with torch.random.fork_rng():
        LlamaForCausalLM(config).save_pretrained(place)
    for file in folder("kimi").iterdir():
        shutil.copy(file, place / file.name)
    (place / "chat_template.jinja").write_text(KIMI_TEMPLATE)
    return place


def adopted(place: Path, **changes: Any) -> Shards:
    spec = TargetSpec(model=str(place), **changes)
    return adopt_folder(spec, locate_target(spec))


def test_a_folder_with_kimis_own_tokenizer_file_is_a_target(kimi_target: Path) -> None:
    facts = adopted(kimi_target).facts
    assert facts["token_format"] == "kimi-k2.5"
    assert facts["eos_ids"] == [END]
    assert {CLOSE, END, *range(163595, 163600)} <= set(facts["reply_ids"])
    assert OPEN not in facts["reply_ids"], "the open marker is the prompt's, never sampled"
    assert "tiktoken.model" in facts["files"]


def test_it_is_served_without_code_of_its_own(kimi_target: Path) -> None:
    spec = TargetSpec(model=str(kimi_target))
    artifact = adopt_folder(spec, locate_target(spec))
    ids = Renderer.of(artifact, spec).ids({"messages": [{"role": "user", "content": "中文abc"}]}, room=4)
    assert not isinstance(ids, Fault)
    (answer,) = decode(load_target(artifact, spec), [list(ids)], 4)
    assert len(answer) == 4


@pytest.mark.parametrize(("switches", "tail"), [({}, [OPEN]), ({"thinking": False}, [OPEN, CLOSE])])
def test_the_prompt_ends_as_the_switches_say(
    kimi_target: Path, switches: dict[str, bool | str], tail: list[int]
) -> None:
    spec = TargetSpec(model=str(kimi_target), template_switches=switches)
    ids = Renderer.of(adopt_folder(spec, locate_target(spec)), spec).ids(
        {"messages": [{"role": "user", "content": "Hi"}]}, room=0
    )
    assert list(ids[-4:])[-len(tail) :] == tail


def test_a_switch_that_the_template_does_not_read_is_refused_with_those_it_reads(kimi_target: Path) -> None:
    with pytest.raises(TargetError, match="does not read enable_thinking; it reads thinking"):
        adopted(kimi_target, template_switches={"enable_thinking": False})


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "namespace"])
def test_what_the_renderer_sets_is_no_switch(name: str, kimi_target: Path) -> None:
    with pytest.raises(TargetError, match=f"does not read {name}"):
        adopted(kimi_target, template_switches={name: "x"})


def test_a_template_without_switches_says_so(tiny_target: Path) -> None:
    with pytest.raises(TargetError, match="does not read thinking; it reads none"):
        adopted(tiny_target, template_switches={"thinking": True})


def test_a_format_of_another_tokenizer_stops_with_both_values(tiny_target: Path) -> None:
    with pytest.raises(TokenFormatError, match=r"163606|163586|163584"):
        adopted(tiny_target, token_format="kimi-k2.5")


def test_a_format_that_does_not_exist_is_named(tiny_target: Path) -> None:
    with pytest.raises(TokenFormatError, match="no token format 'kimi-k99'"):
        adopted(tiny_target, token_format="kimi-k99")


def test_a_wrong_end_id_is_refused(kimi_target: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(kimi_target, tmp_path / "copy"))
    (copy / "generation_config.json").write_text('{"eos_token_id": 163585}')
    with pytest.raises(TokenFormatError, match=r"163585.*163586"):
        adopted(copy)


def test_a_prompt_that_the_format_does_not_know_is_refused(kimi_target: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(kimi_target, tmp_path / "copy"))
    (copy / "chat_template.jinja").write_text(KIMI_TEMPLATE.replace("<|im_middle|><think>\n", "<|im_middle|>\n"))
    with pytest.raises(TargetError, match=r"leave the reasoning closed or open; .* leaves it unsaid"):
        adopted(copy, token_format="kimi-k2.5")
