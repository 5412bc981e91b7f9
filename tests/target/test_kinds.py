"""Targets of other kinds: the text part of multimodal wrappers, sliding windows, tied heads, norms of another form.

What is captured is what transformers computes, decoding gives what transformers generates, and the final norm and head
that are read alone give the same scores as the whole model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel
from transformers.models import gemma3, llava, mistral, qwen2_5_vl, qwen3_moe

from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target import model as model_module
from tasks.target import parts as parts_module
from tasks.target.decoding import decode
from tasks.target.layers import layer_ids
from tasks.target.model import Target, load_target
from tasks.target.parts import load_head_parts

VOCAB, HIDDEN, LAYERS = 320, 32, [1, 2, 4]
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW: dict[str, Any] = {"sliding_window": 6}


def make_llava() -> PreTrainedModel:
    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 8, "projection_dim": 16,
    }  # fmt: skip
    text = TEXT | {"model_type": "llama", "tie_word_embeddings": False}
    return llava.LlavaForConditionalGeneration(
        llava.LlavaConfig(vision_config=vision | {"model_type": "clip_vision_model"}, text_config=text)
    )


def make_qwen_vl() -> PreTrainedModel:
    vision = {"depth": 2, "hidden_size": 16, "num_heads": 2, "out_hidden_size": HIDDEN, "intermediate_size": 24}
    text = TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
    return qwen2_5_vl.Qwen2_5_VLForConditionalGeneration(
        qwen2_5_vl.Qwen2_5_VLConfig(vision_config=vision, text_config=text)
    )


def make_mistral() -> PreTrainedModel:
    return mistral.MistralForCausalLM(mistral.MistralConfig(**TEXT, **WINDOW))


def make_gemma() -> PreTrainedModel:
    kinds = ["sliding_attention", "full_attention"] * 3
    return gemma3.Gemma3ForCausalLM(gemma3.Gemma3TextConfig(**TEXT, **WINDOW, layer_types=kinds))


def make_mixture() -> PreTrainedModel:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return qwen3_moe.Qwen3MoeForCausalLM(qwen3_moe.Qwen3MoeConfig(**TEXT, **experts))


KINDS = {
    "llava": make_llava, "qwen_vl": make_qwen_vl, "mistral": make_mistral, "gemma3": make_gemma, "moe": make_mixture
}  # fmt: skip


@pytest.fixture(params=KINDS, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp(request.param)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = KINDS[request.param]()
        for name, parameter in made.named_parameters():
            if name.endswith("norm.weight"):  # a norm of ones would hide that another one was read
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        made.save_pretrained(where)
    return where


@pytest.fixture
def target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    for module in (model_module, parts_module):
        monkeypatch.setattr(module, "target_folder", lambda target, spec: folder)
    facts = {"vocab_size": VOCAB, "dtype": "float32", "eos_ids": [], "folder": str(folder)}
    return load_target(Shards(shards=(), facts=facts), TargetSpec(model=str(folder)))


def some_ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCAB - 20, (rows, length), generator=torch.Generator().manual_seed(3))


def test_states_are_those_of_transformers_and_the_last_gives_the_model_s_scores(target: Target) -> None:
    ids = some_ids(3, 24)
    aux, last = target.capture(ids, aux_layers=LAYERS)
    with torch.no_grad():
        whole = target.model(input_ids=ids, output_hidden_states=True, use_cache=False)
    wanted = [whole.hidden_states[k] for k in layer_ids(LAYERS, "hf", len(target.layers))]
    assert torch.equal(aux, torch.cat(wanted, dim=-1))
    torch.testing.assert_close(target.lm_head(last), whole.logits, rtol=1e-4, atol=1e-4)


def test_a_sequence_in_a_padded_batch_has_its_own_states(target: Target) -> None:
    long, short = some_ids(1, 24), some_ids(1, 11)
    batch = torch.cat([long, torch.nn.functional.pad(short, (0, 13))])
    aux, last = target.capture(batch, aux_layers=LAYERS)
    if "moe" in str(target.model.config.model_type):
        pytest.skip("expert kernels round by the number of rows")
    for found, wanted in zip((aux, last), target.capture(short, aux_layers=LAYERS), strict=True):
        torch.testing.assert_close(found[1, :11], wanted[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shared", [0, 8])
def test_decoding_gives_what_transformers_generates(target: Target, shared: int) -> None:
    rows = some_ids(3, 15).tolist()  # longer than the window
    prompts = [rows[0][:shared] + row[shared:length] for row, length in zip(rows, (15, 10, 12), strict=True)]
    wanted = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(10):
            with torch.no_grad():
                scores = target.model(input_ids=ids, use_cache=False).logits[:, -1]
            ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
        wanted.append(ids[0, len(prompt) :].tolist())
    assert decode(target, prompts, 10) == wanted


def test_norm_and_head_are_read_alone(target: Target) -> None:
    ids = some_ids(1, 8)
    before, last = target.capture(ids, aux_layers=[len(target.layers) - 1])
    parts = load_head_parts(Shards(shards=()), TargetSpec(model=target.facts["folder"]))
    torch.testing.assert_close(parts.normalised(before), last, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts.scores(last), target.lm_head(last), rtol=1e-4, atol=1e-4)


def test_the_text_part_is_what_is_read(target: Target) -> None:
    config = AutoConfig.from_pretrained(target.facts["folder"]).get_text_config()
    assert len(target.layers) == config.num_hidden_layers == TEXT["num_hidden_layers"]
