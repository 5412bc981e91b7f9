"""Which layer a number means. Inside eyas a layer is named by its OUTPUT, 0-based; every engine counts in its own way.

A number that is off by one loads without an error and costs acceptance, so each convention stands here once, and
nothing else in eyas adds or takes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from schemas.errors import TargetError

EMBEDDING = -1  # "the output of layer -1" is what layer 0 reads

LayerRule = Literal[
    "output_of_layer",  # eyas, the paper, SpecForge, TorchSpec, AngelSlim, Automodel, ModelOpt's defaults
    "hf",  # transformers' hidden_states[k], whose last entry is normalised already
    "vllm",  # what layer k reads; num_layers stands for the last layer's output before the final norm. Speculators too
    "llamacpp",  # as vLLM, without the last
    "sglang_outputs",  # SGLang: outputs, whatever the numbers are; all models until May 2026, most models since
    "sglang_by_first",  # SGLang since sglang#25454 for some models: outputs if the first number is 1, else as vLLM
]
# transformers' names of the models whose classes in SGLang 0.5.23 read the numbers by the first of them
_SGLANG_BY_FIRST = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm4_moe_lite", "glm_moe_dsa",
        "mistral_large_3",
    }
)  # fmt: skip


def default_aux_layers(num_layers: int) -> tuple[int, int, int]:
    """The three layers whose output an EAGLE-3 draft reads by default in SGLang, vLLM and llama.cpp, 0-based.

    Raises:
        TargetError: the target is so shallow that they are not three different layers.
    """
    layers = (1, num_layers // 2 - 1, num_layers - 4)
    if not layers[0] < layers[1] < layers[2]:
        raise TargetError(
            f"the default auxiliary layers of a target with {num_layers} layers are {list(layers)}, not three "
            "different ones in ascending order: name them in extraction.aux_layers"
        )
    return layers


def sglang_rule(model_type: str) -> LayerRule:
    """How SGLang 0.5.23 reads the numbers for a target of this `model_type`.

    Numbers that begin with 1 are outputs under both of its rules, and under the older ones: so outputs [1, ...], the
    default among them, are best written as they are. Others need the rule of the target's own class.
    """
    return "sglang_by_first" if model_type in _SGLANG_BY_FIRST else "sglang_outputs"


def layer_ids(layers: Sequence[int], rule: LayerRule, num_layers: int | None = None) -> list[int]:
    """The numbers by which an engine captures the outputs of these layers.

    Args:
        layers: 0-based, in ascending order; `EMBEDDING` is what the first layer reads.
        rule: how the engine counts.
        num_layers: layers of the target; without it a layer that is too high is not noticed.

    Raises:
        TargetError: the target has no such layer, or the engine cannot name it.
    """
    for layer in layers:
        if num_layers is not None and not EMBEDDING <= layer < num_layers:
            raise TargetError(f"the target has layers 0 to {num_layers - 1}, and no layer {layer}")
    ids = [layer + _distance(rule, is_first_one=list(layers[:1]) == [1]) for layer in layers]
    if layers_of_ids(ids, rule, num_layers) != list(layers):
        raise TargetError(
            f"the outputs of layers {list(layers)} have no numbers in the convention {rule!r} (written as {ids} they "
            f"are read as {layers_of_ids(ids, rule, num_layers)}): choose other layers in extraction.aux_layers"
        )
    return ids


def layers_of_ids(ids: Sequence[int], rule: LayerRule, num_layers: int | None = None) -> list[int]:
    """The layers, by their outputs, that an engine captures when it is given these numbers; arguments as `layer_ids`.

    Raises:
        TargetError: a number names nothing that the engine can capture.
    """
    distance = _distance(rule, is_first_one=bool(ids) and ids[0] == 1)
    layers = [number - distance for number in ids]
    if num_layers is not None:
        last = num_layers - (1 if rule in ("output_of_layer", "vllm") else 2)
        for number, layer in zip(ids, layers, strict=True):
            if not EMBEDDING <= layer <= last:
                raise TargetError(
                    f"{number} is no layer that a target with {num_layers} layers gives in the convention {rule!r}"
                )
    return layers


def _distance(rule: LayerRule, *, is_first_one: bool) -> int:
    """How much larger an engine's number is than the 0-based layer whose output it captures."""
    outputs = rule in ("output_of_layer", "sglang_outputs") or (rule == "sglang_by_first" and is_first_one)
    return 0 if outputs else 1
