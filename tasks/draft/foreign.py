"""The config.json of a draft that others made, in SGLang's, vLLM's or speculators' words, as the shape of our draft.

What our draft does not compute (MLA, several layers, biases, a norm before fc) is refused by its field's name. What
layers the ids mean differs between engines and their versions, so every reading that fits the target is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from schemas.errors import DraftError
from tasks.draft.config import LAYER_IDS, SWITCHES, DraftConfig
from tasks.target.layers import default_aux_layers, layers_of_ids

ENGINE_DEFAULT = "engine_default"  # the reading of a config without ids

_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_FIXED: dict[str, Any] = {  # fields with another value describe a draft that is computed otherwise
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bias": False,
    "tie_word_embeddings": False,
    "norm_before_fc": False,
}
_FIXED_EAGLE: dict[str, Any] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "norm_before_fc": False,
}
_ROPE_NEEDS: dict[str, tuple[str, ...]] = {  # those whose angles do not depend on a request's length
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_PLAIN_THETA = 10000.0  # what every engine takes where a config names none
_AUX_STATES = 3


@dataclass(frozen=True)
class ForeignConfig:
    """A draft's shape without its layers; `ids` are the three numbers that name them, or None for the default."""

    layout: Literal["eagle3", "speculators"]
    fields: Mapping[str, Any]
    ids: tuple[int, int, int] | None
    output_ids: tuple[int, int, int] | None = None  # certain: written once per engine

    def at(self, aux_layers: tuple[int, ...]) -> DraftConfig:
        """The shape, fed by the outputs of these layers.

        Raises:
            DraftError: a size is missing or impossible.
        """
        try:
            return DraftConfig.model_validate({**self.fields, "aux_layers": tuple(aux_layers)})
        except ValidationError as exc:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in exc.errors())
            raise DraftError(f"config.json is not that of an EAGLE-3 draft: {faults}") from exc

    def readings(self, num_layers: int) -> dict[str, list[int]]:
        """Layers whose OUTPUT the ids may mean, 0-based, by the name of the reading; engines' default layers first.

        Raises:
            DraftError: the target has no such layers under any reading.
        """
        if self.output_ids is not None:
            found = {"output_of_layer": list(self.output_ids)}
        elif self.ids is None:
            found = {ENGINE_DEFAULT: list(default_aux_layers(num_layers))}
        else:
            found = {"input_to_layer": layers_of_ids(self.ids, "vllm"), "output_of_layer": list(self.ids)}
        usable = {
            name: layers
            for name, layers in found.items()
            if 0 <= layers[0] < layers[1] < layers[2] < num_layers - 1  # the last one's output is the teacher
        }
        if not usable:
            raise DraftError(
                f"the draft's {LAYER_IDS} {list(self.ids or self.output_ids or ())} name no three layers in ascending "
                f"order of a target with {num_layers}: it was made for another target"
            )
        default = list(default_aux_layers(num_layers))
        return dict(sorted(usable.items(), key=lambda item: item[1] != default))


def read_foreign_config(fields: Mapping[str, Any]) -> ForeignConfig:
    """Read a config.json of any of the known layouts.

    Raises:
        DraftError: names the field that is missing, contradicts another, or describes another kind of draft.
    """
    if "speculators_model_type" in fields:
        return _speculators(fields)
    architectures = fields.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in _ARCHITECTURES:
        other = (
            "; drafts with latent attention (MLA) cannot be trained here" if "Deepseek" in str(architectures) else ""
        )
        raise DraftError(
            f"config.json names the architecture {architectures}, not one of {list(_ARCHITECTURES)}{other}"
        )
    eagle = _mapping(fields, "eagle_config")
    _refuse_others(fields, _FIXED, "")
    _refuse_others(eagle, _FIXED_EAGLE, "eagle_config.")
    ids, output_ids = _layer_ids(_three(fields, LAYER_IDS), _three(eagle, LAYER_IDS))
    switches = {name: fields[name] for name in SWITCHES if fields.get(name) is not None}
    return ForeignConfig("eagle3", _sizes(fields) | switches, ids, output_ids)


def _speculators(fields: Mapping[str, Any]) -> ForeignConfig:
    if fields["speculators_model_type"] != "eagle3":
        raise DraftError(
            f"config.json has speculators_model_type {fields['speculators_model_type']!r}: only eagle3 can be read"
        )
    layer = _mapping(fields, "transformer_layer_config")
    if not layer:
        raise DraftError("config.json lacks transformer_layer_config")
    _refuse_others(layer, _FIXED, "transformer_layer_config.")
    _refuse_others(fields, {"norm_before_fc": False}, "")
    own = {name: fields[name] for name in ("draft_vocab_size", "target_hidden_size") if fields.get(name) is not None}
    # vLLM's default for this layout, which serves it; the class's own is false, but whoever saves writes the field
    switches = {"norm_before_residual": fields.get("norm_before_residual", True)}
    switches |= {name: fields.get(name, False) for name in ("fc_norm", "norm_output")}
    return ForeignConfig("speculators", _sizes({**layer, **own}) | switches, _three(fields, LAYER_IDS))


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
    )
    if missing := [name for name in kept if fields.get(name) is None]:
        raise DraftError(f"config.json lacks {', '.join(missing)}")
    sizes = {name: fields[name] for name in kept}
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    return sizes | {
        "target_hidden_size": fields.get("target_hidden_size") or hidden,
        "num_key_value_heads": fields.get("num_key_value_heads") or heads,
        "head_dim": fields.get("head_dim") or hidden // heads,
        "draft_vocab_size": fields.get("draft_vocab_size") or sizes["vocab_size"],
        "rope_parameters": _checked_rope(_rope(fields)),
    }


def _rope(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary parameters in transformers 5's words, from either spelling.

    Raises:
        DraftError: the two spellings contradict each other.
    """
    new, old = _mapping(fields, "rope_parameters"), _mapping(fields, "rope_scaling")
    theta = fields.get("rope_theta")
    scaling = {("rope_type" if name == "type" else name): value for name, value in old.items()}
    scaling.pop("rope_theta", None)
    if not new:
        return {"rope_type": "default", **scaling, "rope_theta": float(theta or _PLAIN_THETA)}
    said = {"rope_type": "default", "rope_theta": float(theta or _PLAIN_THETA), **new}
    if theta is not None and float(theta) != float(said["rope_theta"]):
        raise DraftError(f"config.json has rope_theta {theta}, and {said['rope_theta']} in rope_parameters")
    if scaling and {**said, **scaling} != said:
        raise DraftError(f"config.json has rope_scaling {dict(old)}, and rope_parameters {dict(new)}")
    return said


def _checked_rope(parameters: dict[str, Any]) -> dict[str, Any]:
    kind = parameters["rope_type"]
    if kind not in _ROPE_NEEDS:
        raise DraftError(f"config.json has the rotary embedding {kind!r}: one of {list(_ROPE_NEEDS)} can be trained")
    if missing := [name for name in _ROPE_NEEDS[kind] if parameters.get(name) is None]:
        raise DraftError(f"config.json has the rotary embedding {kind!r} without {', '.join(missing)}")
    return parameters


def _layer_ids(
    top: tuple[int, int, int] | None, inner: tuple[int, int, int] | None
) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
    """The ids, and the layers that they certainly mean if vLLM's (top level) and SGLang's differ by one."""
    if top is None or inner is None or top == inner:
        return top or inner, None
    if layers_of_ids(top, "vllm") == list(inner):
        return top, inner
    raise DraftError(
        f"config.json has {LAYER_IDS} {list(top)}, and {list(inner)} in eagle_config: it is not clear which are meant"
    )


def _three(fields: Mapping[str, Any], name: str) -> tuple[int, int, int] | None:
    ids = fields.get(name)
    if not ids:
        return None
    whole = isinstance(ids, list) and all(type(number) is int for number in ids)
    if not whole or len(ids) not in (_AUX_STATES, _AUX_STATES + 1):  # a fourth is the teacher's layer
        raise DraftError(f"config.json has {name} {ids}: three layer ids are expected")
    return ids[0], ids[1], ids[2]


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DraftError(f"config.json has {name} {value!r}: a mapping is expected")
    return value


def _refuse_others(fields: Mapping[str, Any], fixed: Mapping[str, Any], prefix: str) -> None:
    for name, right in fixed.items():
        if fields.get(name) is not None and fields[name] != right:
            raise DraftError(
                f"config.json has {prefix}{name}: {fields[name]!r}; only {right!r} can be trained and exported here"
            )
