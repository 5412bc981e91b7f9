"""The final norm and the head of a target, read alone: a server computes the rest, and the whole may not fit here."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from schemas.errors import TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.target.place import target_folder

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class HeadParts:
    """What turns the last layer's output into scores."""

    norm: nn.Module  # float32
    head: Tensor  # float32 (vocab, hidden)

    @torch.no_grad()
    def normalised(self, states: Tensor) -> Tensor:
        """Outputs of the last layer after the final norm, float32 (..., hidden)."""
        return self.norm(states.float())

    @torch.no_grad()
    def scores(self, normalised: Tensor) -> Tensor:
        """Scores over the vocabulary, float32 (..., vocab)."""
        return nn.functional.linear(normalised.float(), self.head)


def load_head_parts(target: Shards, spec: TargetSpec) -> HeadParts:
    """Read the two from the target's files.

    Raises:
        TargetError: they are not there under a name that can only be theirs.
    """
    folder = target_folder(target, spec)
    model = _one_layer(folder, spec)
    decoder = model.get_decoder()
    norm = getattr(decoder, "norm", None)
    if norm is None:
        raise TargetError(f"the target in {folder} has no final norm called `norm`: its states cannot be normalised")
    files = _tensor_files(folder)
    norm = norm.to_empty(device="cpu").float()
    norm.load_state_dict({"weight": _read(files, "norm.weight", folder)})
    tied = bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    name = "lm_head.weight" if not tied or any(n.endswith("lm_head.weight") for n in files) else "embed_tokens.weight"
    return HeadParts(norm.eval().requires_grad_(False), _read(files, name, folder))


def _one_layer(folder: Path, spec: TargetSpec) -> Any:
    """The target's model with a single layer and no weights, for the code of its norm."""
    from transformers import AutoConfig

    from tasks.target.model import model_class

    config: Any = copy.deepcopy(AutoConfig.from_pretrained(str(folder), trust_remote_code=spec.trust_remote_code))
    text = config.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    with torch.device("meta"):
        return model_class(config).from_config(config, trust_remote_code=spec.trust_remote_code)


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor."""
    index = folder / _INDEX
    if index.is_file():
        return {name: folder / file for name, file in json.loads(index.read_bytes())["weight_map"].items()}
    files = sorted(folder.glob("*.safetensors"))
    found = {}
    for path in files:
        with safe_open(path, "pt") as tensors:
            found |= dict.fromkeys(tensors.keys(), path)
    return found


def _read(files: dict[str, Path], ending: str, folder: Path) -> Tensor:
    """The one tensor outside the layers (and outside a vision tower) whose name ends so, in float32."""
    outside = [n for n in files if f".{n}".endswith(f".{ending}") and ".layers." not in n and "vision" not in n]
    shortest = min((name.count(".") for name in outside), default=0)
    names = [name for name in outside if name.count(".") == shortest]
    if len(names) != 1:
        raise TargetError(f"the weights in {folder} have {len(names)} tensors that could be the target's {ending}")
    try:
        with safe_open(files[names[0]], "pt") as tensors:
            return tensors.get_tensor(names[0]).float()
    except (OSError, SafetensorError) as exc:
        raise TargetError(f"{files[names[0]]} cannot be read: {exc}") from exc
