"""Every convention of numbering layers that drafts and engines are known to use, row by row, and back again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TargetError
from tasks.target.layers import (
    EMBEDDING,
    LayerRule,
    default_aux_layers,
    layer_ids,
    layers_of_ids,
    sglang_rule,
)
from tasks.target.model import Target

KIMI, LLAMA = 61, 32
KIMI_LAYERS, LLAMA_LAYERS = [1, 29, 57], [1, 15, 28]
RULES: list[LayerRule] = ["output_of_layer", "hf", "vllm", "llamacpp", "sglang_by_first", "sglang_outputs"]


def test_the_default_layers_are_those_of_the_paper() -> None:
    assert list(default_aux_layers(KIMI)) == KIMI_LAYERS
    assert list(default_aux_layers(LLAMA)) == LLAMA_LAYERS


@pytest.mark.parametrize(
    ("who", "rule", "ids", "layers", "num_layers"),
    [
        ("the paper's code", "output_of_layer", [1, 29, 57], KIMI_LAYERS, KIMI),
        ("SpecForge", "output_of_layer", [1, 15, 28], LLAMA_LAYERS, LLAMA),
        ("TorchSpec, AngelSlim, Automodel, ModelOpt", "output_of_layer", [1, 29, 57], KIMI_LAYERS, KIMI),
        ("SGLang before May 2026, outputs", "sglang_outputs", [1, 29, 57], KIMI_LAYERS, KIMI),
        ("SGLang before May 2026, AQ-MedAI's ids", "sglang_outputs", [2, 30, 58], [2, 30, 58], KIMI),
        ("SGLang since, first id 1", "sglang_by_first", [1, 29, 57], KIMI_LAYERS, KIMI),
        ("SGLang since, AQ-MedAI's ids", "sglang_by_first", [2, 30, 58], KIMI_LAYERS, KIMI),
        ("SGLang since, any other first id", "sglang_by_first", [3, 30, 58], [2, 29, 57], KIMI),
        ("vLLM", "vllm", [2, 30, 58], KIMI_LAYERS, KIMI),
        ("vLLM, outputs by mistake", "vllm", [1, 29, 57], [0, 28, 56], KIMI),
        ("vLLM, the embedding", "vllm", [0, 16, 29], [EMBEDDING, 15, 28], LLAMA),
        ("speculators, with the last state", "vllm", [2, 16, 29, 32], [*LLAMA_LAYERS, 31], LLAMA),
        ("ModelOpt's Kimi recipe", "vllm", [2, 30, 58, 61], [*KIMI_LAYERS, 60], KIMI),
        ("ModelOpt's Kimi recipe on an older vLLM", "vllm", [2, 30, 58, 60], [*KIMI_LAYERS, 59], KIMI),
        ("transformers", "hf", [2, 16, 29], LLAMA_LAYERS, LLAMA),
        ("llama.cpp", "llamacpp", [2, 16, 29], LLAMA_LAYERS, LLAMA),
    ],
)
def test_ids_of_others_are_read_as_they_mean_them(
    who: str, rule: LayerRule, ids: list[int], layers: list[int], num_layers: int
) -> None:
    assert layers_of_ids(ids, rule, num_layers) == layers, who


@pytest.mark.parametrize(
    ("rule", "kimi", "llama"),
    [
        ("sglang_by_first", [1, 29, 57], [1, 15, 28]),
        ("vllm", [2, 30, 58], [2, 16, 29]),
        ("llamacpp", [2, 30, 58], [2, 16, 29]),
        ("hf", [2, 30, 58], [2, 16, 29]),
        ("sglang_outputs", [1, 29, 57], [1, 15, 28]),
        ("output_of_layer", [1, 29, 57], [1, 15, 28]),
    ],
)
def test_what_means_the_default_in_each_convention(rule: LayerRule, kimi: list[int], llama: list[int]) -> None:
    assert layer_ids(KIMI_LAYERS, rule, KIMI) == kimi
    assert layer_ids(LLAMA_LAYERS, rule, LLAMA) == llama


@given(
    layers=st.lists(st.integers(1, 58), min_size=3, max_size=3, unique=True).map(sorted), rule=st.sampled_from(RULES)
)
def test_what_is_written_is_read_back(layers: list[int], rule: LayerRule) -> None:
    assert layers_of_ids(layer_ids(layers, rule, KIMI), rule, KIMI) == layers


def test_outputs_that_begin_with_1_are_written_alike_for_every_sglang() -> None:
    for layers in (KIMI_LAYERS, [1, 2, 3]):
        assert layer_ids(layers, "sglang_by_first", KIMI) == layer_ids(layers, "sglang_outputs", KIMI) == layers
    assert layer_ids([2, 30, 58], "sglang_by_first", KIMI) == [3, 31, 59]
    assert layer_ids([2, 30, 58], "sglang_outputs", KIMI) == [2, 30, 58]


def test_sglang_s_rule_depends_on_the_model() -> None:
    assert sglang_rule("kimi_k25") == sglang_rule("deepseek_v3") == "sglang_by_first"
    assert sglang_rule("llama") == sglang_rule("qwen3") == "sglang_outputs"


def test_layers_that_an_engine_would_misread_are_refused() -> None:
    with pytest.raises(
        TargetError, match=r"\[0, 29, 57\] have no numbers in the convention 'sglang_by_first'.*\[1, 30, 58\]"
    ):
        layer_ids([0, 29, 57], "sglang_by_first", KIMI)


@pytest.mark.parametrize("rule", ["hf", "llamacpp", "sglang_by_first", "sglang_outputs"])
def test_only_vllm_gives_the_last_layer_before_the_norm(rule: LayerRule) -> None:
    assert layer_ids([1, 29, 57, 60], "vllm", KIMI) == [2, 30, 58, 61]
    with pytest.raises(TargetError, match="is no layer that a target with 61 layers gives"):
        layer_ids([1, 29, 57, 60], rule, KIMI)


@pytest.mark.parametrize("layer", [-2, 61])
def test_layers_that_the_target_lacks_are_refused(layer: int) -> None:
    with pytest.raises(TargetError, match=f"no layer {layer}"):
        layer_ids([layer], "vllm", KIMI)
    with pytest.raises(TargetError, match="62 is no layer"):
        layers_of_ids([62], "vllm", KIMI)


def test_a_target_too_shallow_for_the_default_is_refused() -> None:
    with pytest.raises(TargetError, match=r"extraction\.aux_layers"):
        default_aux_layers(6)


def test_hidden_states_of_transformers_are_numbered_as_said(tiny_loaded: Target) -> None:
    ids = torch.arange(12)[None]
    with torch.no_grad():
        states = tiny_loaded.decoder(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    layers = [0, 3, 5]
    aux, _ = tiny_loaded.capture(ids, aux_layers=layers)
    wanted = torch.cat([states[k] for k in layer_ids(layers, "hf", len(tiny_loaded.layers))], dim=-1)
    assert torch.equal(aux, wanted)
