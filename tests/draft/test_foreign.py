"""Configs of public drafts become our draft's shape, to the tensor; what would be computed otherwise is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from schemas.errors import DraftError
from tasks.draft.checkpoint import expected_tensors
from tasks.draft.config import DraftConfig
from tasks.draft.foreign import read_foreign_config
from tasks.draft.model import Eagle3Draft
from tasks.export.layouts import layout_config

Fields = dict[str, Any]
KIMI_LAYERS = 61
LLAMA_LAYERS = 32

AQ_MEDAI: Fields = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 128,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "vocab_size": 163840,
    "draft_vocab_size": 32000,
    "tie_word_embeddings": False,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 262144,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True},
}
YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0, "beta_slow": 1.0}
LIGHTSEEK: Fields = {
    **{name: AQ_MEDAI[name] for name in AQ_MEDAI if name not in ("eagle_config", "draft_vocab_size")},
    "intermediate_size": 12288,
    "rope_theta": 50000.0,
    "rope_scaling": YARN,
}
SPECULATORS: Fields = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000,
    "norm_before_residual": True,
    "target_hidden_size": None,
    "eagle_aux_hidden_state_layer_ids": [2, 16, 29, 32],
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "vocab_size": 128256,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}]},
}


def shape_on_meta(fields: Fields, layers: int) -> tuple[Eagle3Draft, dict[str, list[int]]]:
    """The draft without memory for it, and the readings of its ids."""
    foreign = read_foreign_config(fields)
    readings = foreign.readings(layers)
    config = foreign.at(tuple(next(iter(readings.values()))))
    with torch.device("meta"):
        draft = Eagle3Draft(config)
    stored = {name: tuple(tensor.shape) for name, tensor in draft.state_dict().items()}
    assert stored == expected_tensors(config)
    return draft, readings


def test_the_aq_medai_draft_has_1_19_billion_weights() -> None:
    draft, readings = shape_on_meta(AQ_MEDAI, KIMI_LAYERS)
    parts = {name: parameter.numel() for name, parameter in draft.named_parameters()}
    assert sum(parts.values()) == 1_190_948_864
    assert sum(count for name, count in parts.items() if "self_attn" in name) == 3 * 8192 * 14336 + 7168 * 8192
    assert tuple(draft.midlayer.self_attn.k_proj.weight.shape) == (8192, 14336)
    assert draft.config.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    assert readings == {"input_to_layer": [1, 29, 57], "output_of_layer": [2, 30, 58]}


def test_the_lightseek_draft_has_the_whole_vocabulary_and_yarn() -> None:
    draft, readings = shape_on_meta(LIGHTSEEK, KIMI_LAYERS)
    assert draft.config.draft_vocab_size == draft.config.vocab_size == 163840
    assert draft.config.intermediate_size == 12288
    assert draft.config.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 50000.0,
        **{name: value for name, value in YARN.items() if name != "type"},
    }
    assert readings == {"engine_default": [1, 29, 57]}


def test_a_speculators_draft_keeps_its_switches_and_its_first_three_layers() -> None:
    draft, readings = shape_on_meta(SPECULATORS, LLAMA_LAYERS)
    config = draft.config
    assert (config.norm_before_residual, config.fc_norm, config.norm_output) == (True, False, False)
    assert (config.draft_vocab_size, config.vocab_size, config.target_hidden_size) == (32000, 128256, 4096)
    assert config.rope_parameters["rope_type"] == "llama3"
    assert readings == {"input_to_layer": [1, 15, 28], "output_of_layer": [2, 16, 29]}


def test_without_the_field_a_speculators_draft_is_read_as_vllm_serves_it() -> None:
    fields = {name: value for name, value in SPECULATORS.items() if name != "norm_before_residual"}
    assert read_foreign_config(fields).at((1, 15, 28)).norm_before_residual is True


def test_a_plain_draft_without_the_field_has_the_plain_residual() -> None:
    assert read_foreign_config(AQ_MEDAI).at((1, 29, 57)).norm_before_residual is False


@pytest.mark.parametrize(
    ("top", "inner", "readings"),
    [
        ([2, 30, 58], [1, 29, 57], {"output_of_layer": [1, 29, 57]}),  # written once for vLLM, once for SGLang
        ([2, 30, 58], [2, 30, 58], {"input_to_layer": [1, 29, 57], "output_of_layer": [2, 30, 58]}),
        (None, [1, 29, 57], {"input_to_layer": [0, 28, 56], "output_of_layer": [1, 29, 57]}),
        (None, [0, 29, 57], {"output_of_layer": [0, 29, 57]}),
        ([3, 31, 60], None, {"input_to_layer": [2, 30, 59]}),  # the output of layer 60 is the teacher
        (None, None, {"engine_default": [1, 29, 57]}),
    ],
)
def test_ids_have_the_readings_that_fit_the_target(top: Any, inner: Any, readings: dict[str, list[int]]) -> None:
    eagle = {"eagle_aux_hidden_state_layer_ids": inner} if inner else {}
    fields = AQ_MEDAI | {"eagle_aux_hidden_state_layer_ids": top, "eagle_config": eagle}
    assert read_foreign_config(fields).readings(KIMI_LAYERS) == readings


def test_ids_of_a_deeper_target_are_refused() -> None:
    with pytest.raises(DraftError, match=r"\[2, 30, 58\].*target with 32"):
        read_foreign_config(AQ_MEDAI).readings(LLAMA_LAYERS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "latent attention"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"num_hidden_layers": 2}, "num_hidden_layers: 2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "eagle_config.use_aux_hidden_state"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "eagle_config.parallel_draft_step"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30]}}, "three layer ids"),
        ({"eagle_config": [2, 30, 58]}, "eagle_config"),
        ({"eagle_aux_hidden_state_layer_ids": [5, 30, 58]}, "not clear which"),
        ({"rope_parameters": {"rope_theta": 5e4, "rope_type": "default"}}, "rope_theta"),
        ({"rope_scaling": YARN, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "without original_max_position_embeddings"),
        ({"intermediate_size": None}, "lacks intermediate_size"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
    ],
)
def test_another_kind_of_draft_is_refused_by_its_field(change: Fields, message: str) -> None:
    with pytest.raises(DraftError, match=message):
        read_foreign_config(AQ_MEDAI | change).at((1, 29, 57))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculators_model_type": "peagle"}, "peagle"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"transformer_layer_config": None}, "transformer_layer_config"),
    ],
)
def test_another_kind_of_speculator_is_refused_by_its_field(change: Fields, message: str) -> None:
    with pytest.raises(DraftError, match=message):
        read_foreign_config(SPECULATORS | change)


def test_both_rope_spellings_of_one_meaning_are_one() -> None:
    both = LIGHTSEEK | {"rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 50000.0}}
    assert read_foreign_config(both).fields["rope_parameters"]["factor"] == 64.0


@pytest.mark.parametrize(
    ("fields", "layers"), [(AQ_MEDAI, KIMI_LAYERS), (LIGHTSEEK, KIMI_LAYERS), (SPECULATORS, LLAMA_LAYERS)]
)
def test_what_is_written_of_a_public_draft_reads_back_as_the_same(fields: Fields, layers: int) -> None:
    """Our own config, and the two layouts that are written from it."""
    foreign = read_foreign_config(fields)
    config = foreign.at(tuple(next(iter(foreign.readings(layers).values()))))
    assert DraftConfig.from_checkpoint(config.to_checkpoint()) == config
    for written in (config.to_checkpoint(), *(layout_config(config, name, {}) for name in ("vllm", "speculators"))):
        again = read_foreign_config(written)
        assert again.at(config.aux_layers) == config
        assert list(config.aux_layers) in again.readings(layers).values()
        plain = written.get("transformer_layer_config", written)
        assert plain["rope_theta"] == plain["rope_parameters"]["rope_theta"] == config.rope_parameters["rope_theta"]
        scaling = {name: value for name, value in config.rope_parameters.items() if name != "rope_theta"}
        assert plain["rope_scaling"] == (scaling if scaling["rope_type"] != "default" else None)
        assert plain["max_position_embeddings"] == config.max_position_embeddings
