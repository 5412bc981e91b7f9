"""The shape of an EAGLE-3 draft, and its `config.json` as SGLang and vLLM read it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import DraftError
from tasks.target.layers import layer_ids, layers_of_ids

ARCHITECTURE = "LlamaForCausalLMEagle3"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
SWITCHES = ("fc_norm", "norm_output", "norm_before_residual")  # written only where on: absent means off to all engines


class DraftConfig(BaseModel):
    """Sizes of a Llama-style EAGLE-3 draft with one decoder layer.

    `aux_layers` are the three target layers whose OUTPUT the draft is fed with, 0-based. `rope_parameters` is what
    transformers 5 calls so: `rope_type`, `rope_theta` and the variables of the scaling, taken from the target.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(ge=1)
    target_hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    vocab_size: int = Field(ge=1, description="the target's vocabulary")
    draft_vocab_size: int = Field(ge=1)
    rms_norm_eps: float = Field(gt=0)
    rope_parameters: dict[str, Any]
    max_position_embeddings: int = Field(ge=1)
    aux_layers: tuple[int, int, int]
    fc_norm: bool = Field(default=False, description="EAGLE-3.1: a norm on each auxiliary state before fc")
    norm_output: bool = Field(default=False, description="EAGLE-3.1: later steps are fed with the normalised output")
    norm_before_residual: bool = Field(default=False, description="the residual is taken after hidden_norm")
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def to_checkpoint(self) -> dict[str, Any]:
        """The fields of `config.json`.

        The layers stand there twice: at the top as vLLM (which looks there first) and llama.cpp count, in
        `eagle_config` by their outputs. SGLang looks only there, and takes ids that begin with 1 so in every version
        and for every target; other ids it takes so for some targets only (tasks/draft/engines.py).
        """
        switches = {name: True for name in SWITCHES if getattr(self, name)}
        scaling = {k: v for k, v in self.rope_parameters.items() if k != "rope_theta"}
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "attention_bias": False,
            "mlp_bias": False,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "tie_word_embeddings": False,
            "rope_theta": self.rope_parameters.get("rope_theta", 10000.0),
            "rope_scaling": scaling if scaling.get("rope_type", "default") != "default" else None,
            "rope_parameters": self.rope_parameters,
            "max_position_embeddings": self.max_position_embeddings,
            "torch_dtype": "bfloat16",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self.pad_token_id,
            LAYER_IDS: layer_ids(self.aux_layers, "vllm"),
            "eagle_config": {
                LAYER_IDS: layer_ids(self.aux_layers, "sglang_outputs"),
                "use_aux_hidden_state": True,
            },
        } | switches

    @property
    def owns_embedding(self) -> bool:
        """Whether the draft has token embeddings of its own: its width is not the target's, whose it cannot read."""
        return self.hidden_size != self.target_hidden_size

    @classmethod
    def from_checkpoint(cls, fields: dict[str, Any]) -> DraftConfig:
        """Read back what `to_checkpoint` wrote.

        Raises:
            DraftError: another architecture, or a field is missing.
        """
        if fields.get("architectures") != [ARCHITECTURE]:
            raise DraftError(f"config.json names the architecture {fields.get('architectures')}, not {ARCHITECTURE}")
        own = {name: fields[name] for name in cls.model_fields if name in fields}
        try:
            layers = tuple(layers_of_ids(fields[LAYER_IDS], "vllm"))
            named = tuple(fields["eagle_config"][LAYER_IDS])
            config = cls.model_validate(own | {"aux_layers": layers})
        except (KeyError, TypeError, ValidationError) as exc:
            raise DraftError(f"config.json is not that of an EAGLE-3 draft: {exc}") from exc
        if named != layers:
            raise DraftError(f"config.json names the layers {layers} for vLLM, and {named} for SGLang: export it again")
        return config
