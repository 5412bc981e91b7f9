"""The target in memory: one copy per process, shared by all task threads, with its states captured where a step asks.

`capture` is the only way that eyas reads hidden states, so training, the probe and the benchmark see the same ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from schemas.errors import TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target.packed import can_pack, pack_linears
from tasks.target.place import target_folder

# On a CPU, masked attention that repeats the key-value heads spends half of its time on those copies.
_GROUPED_ATTENTION = ("TRANSFORMERS_SDPA_FORCE_GQA", "1")

_lock = threading.Lock()
_loaded: dict[tuple[str, str, str], Target] = {}


def load_target(target: Shards, spec: TargetSpec) -> Target:
    """The target's model, loaded once per process whichever thread comes first.

    Raises:
        TargetError: the target's files are missing, were changed, or do not load.
    """
    key = (target.digest(), spec.dtype, spec.device)
    with _lock:
        if key not in _loaded:
            _loaded[key] = Target(_load_model(target, spec), target.facts)
        return _loaded[key]


class Target:
    """A causal language model in evaluation mode, without gradients, that several threads may use at once."""

    def __init__(self, model: Any, facts: dict[str, Any]) -> None:
        self.model = model.eval().requires_grad_(False)
        if can_pack(model):
            pack_linears(model)
        self.facts = facts
        self.device: torch.device = model.device
        self.decoder: nn.Module = model.get_decoder()
        self.layers: nn.ModuleList = self.decoder.layers  # type: ignore[assignment]
        self.has_windows = _has_windows(model.config.get_text_config())
        self._collector = threading.local()
        for index, layer in enumerate(self.layers):
            layer.register_forward_hook(self._hook(index))

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings: int64 (...) -> (..., hidden)."""
        return self.model.get_input_embeddings()(ids)

    def lm_head(self, states: Tensor) -> Tensor:
        """Scores over the vocabulary from post-final-norm states: (..., hidden) -> (..., vocab)."""
        return self.model.get_output_embeddings()(states)

    @torch.no_grad()
    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """The states after the final norm: int64 (B, T) -> (B, T, hidden); `cache` is read and extended."""
        return self.decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def capture(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        *,
        aux_layers: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """One forward pass with the outputs of three layers.

        Args:
            input_ids: int64 (B, T).
            attention_mask: int64 (B, cached + T), 0 where padded.
            position_ids: int64 (B, T).
            cache: transformers cache, read and extended.
            aux_layers: 0-based layers whose output is wanted.

        Returns:
            aux (B, T, len(aux_layers)·hidden) in the order of `aux_layers`, last (B, T, hidden) after the final norm.
        """
        states: dict[int, Any] = dict.fromkeys(aux_layers)
        self._collector.states = states
        try:
            last = self.hidden(input_ids, attention_mask, position_ids, cache)
        finally:
            self._collector.states = None
        return torch.cat([_captured(states, index).to(last.device) for index in aux_layers], dim=-1), last

    def _hook(self, index: int) -> Any:
        collector = self._collector

        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            states = getattr(collector, "states", None)
            if states is not None and index in states:
                states[index] = output if isinstance(output, Tensor) else output[0]

        return keep


def _has_windows(config: Any) -> bool:
    """Whether some layers attend to the newest positions only, so that a gap in the cache would push out others."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return any(kind != "full_attention" for kind in kinds)
    return bool(getattr(config, "sliding_window", None))


def _captured(states: dict[int, Any], index: int) -> Tensor:
    if states[index] is None:
        raise TargetError(f"the target has no layer {index}: correct extraction.aux_layers")
    return states[index]


def model_class(config: Any) -> Any:
    """The transformers class that loads a configuration: a language model, or a wrapper that has one for its text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    is_language_model = own_code or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if is_language_model else AutoModelForImageTextToText


def _load_model(target: Shards, spec: TargetSpec) -> Any:
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    if spec.device == "cpu":
        os.environ.setdefault(*_GROUPED_ATTENTION)
    folder = target_folder(target, spec)
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=spec.trust_remote_code)
        model: Any = model_class(config).from_pretrained(
            str(folder),
            dtype=getattr(torch, spec.dtype),
            attn_implementation="sdpa",
            trust_remote_code=spec.trust_remote_code,
            use_safetensors=True,
            device_map="auto" if spec.device == "auto" else None,
        )
        return model if spec.device == "auto" else model.to(spec.device)
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError, SafetensorError) as exc:
        raise TargetError(
            f"the target in {folder} does not load on target.device {spec.device!r}: {exc}. "
            "Check the files and the device"
        ) from exc
