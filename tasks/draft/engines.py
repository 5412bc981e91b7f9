"""What the engines would make of an exported draft, so that one that would be served wrongly is refused beforehand.

No engine raises when it skips a tensor or a switch that it does not know: the draft only accepts less. The facts here
were read off SGLang 0.5.23 and vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.errors import DraftError, TargetError
from tasks.draft.config import SWITCHES, DraftConfig
from tasks.target.layers import layer_ids, layers_of_ids


@dataclass(frozen=True)
class _Engine:
    title: str
    switches: frozenset[str]  # of DraftConfig, that it computes


_ENGINES = {
    "sglang": _Engine("SGLang", frozenset({"fc_norm", "norm_output"})),
    "vllm": _Engine("vLLM", frozenset(SWITCHES)),
}


def require_engines(config: DraftConfig, engines: Iterable[str]) -> None:
    """Refuse a draft that one of the engines would not serve as it was trained.

    Raises:
        DraftError: names the engine, the field, and what to change.
    """
    for name in engines:
        if reason := misread_by(config, name):
            raise DraftError(f"{_ENGINES[name].title} would not serve this draft as it was trained: {reason}")


def misread_by(config: DraftConfig, name: str) -> str:
    """Why an engine would serve a draft of this shape wrongly; empty if it would not."""
    engine = _ENGINES[name]
    for switch in SWITCHES:
        if getattr(config, switch) and switch not in engine.switches:
            return f"it does not know {switch}, and skips it in silence. Set draft.{switch}: false"
    if config.draft_vocab_size == config.vocab_size:
        if name == "sglang":
            return (
                "with the target's whole vocabulary it may take the target's head in place of the draft's. Set "
                "vocabulary.size below the target's"
            )
        return (
            "with the target's whole vocabulary it has no place for d2t. Set vocabulary.size below the target's, or "
            "take the layout vllm"
        )
    return _misread_layers(config) if name == "sglang" else ""


def _misread_layers(config: DraftConfig) -> str:
    """SGLang takes ids as outputs, or as what a layer reads, by its version, the target's class, and the first id."""
    layers = list(config.aux_layers)
    outputs = layer_ids(layers, "sglang_outputs")
    try:
        if layers_of_ids(outputs, "sglang_by_first") == layers:
            return ""
    except TargetError:
        pass
    return (
        "what its layer ids mean depends on its version and on the target's class unless the first is 1, and the draft "
        f"reads the outputs of layers {layers}. Name layers that begin with 1 in extraction.aux_layers, or leave "
        "sglang out of export.engines"
    )
