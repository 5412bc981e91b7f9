"""A draft as files: `config.json` and `model.safetensors` in the layout that SGLang reads.

Stored names, shapes and dtypes are exactly those of `expected_tensors`: SGLang skips names that it does not know, so a
wrong one would give a random layer without an error. Never reads pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from schemas.errors import DraftError
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_bytes
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft

CONFIG, WEIGHTS = "config.json", "model.safetensors"  # file names; the artifact's parts are "config" and "weights"
_COMPUTE = (torch.bfloat16, torch.float16, torch.float32)


def expected_tensors(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every stored tensor. `d2t` is int64 offsets, `t2d` bool, the rest are weights."""
    hidden, width = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 3 * config.target_hidden_size),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (width, hidden),
        "midlayer.mlp.up_proj.weight": (width, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, width),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
        "d2t": (config.draft_vocab_size,),
        "t2d": (config.vocab_size,),
    }
    if config.fc_norm:
        tensors |= {f"fc_norm.{state}.weight": (config.target_hidden_size,) for state in range(len(config.aux_layers))}
    if config.owns_embedding:
        tensors["embed_tokens.weight"] = (config.vocab_size, hidden)
    return tensors


def write_checkpoint(folder: Path, draft: Eagle3Draft, dtype: torch.dtype) -> None:
    """Write both files, each atomically; equal drafts give equal bytes.

    Raises:
        DraftError: a weight is not finite in `dtype`.
    """
    write_tensors(folder, draft.config.to_checkpoint(), tensors_of(draft, dtype), dtype)


def tensors_of(draft: Eagle3Draft, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor of a draft as it is stored: weights in `dtype`.

    Raises:
        DraftError: a weight is not finite in `dtype`.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in draft.state_dict().items():
        stored = tensor.to("cpu", dtype) if tensor.is_floating_point() else tensor.cpu()
        if stored.is_floating_point() and not stored.isfinite().all():
            raise DraftError(f"{name} holds values that are not finite: training has diverged, lower the learning rate")
        tensors[name] = stored.contiguous()
    return tensors


def write_tensors(folder: Path, fields: dict[str, Any], tensors: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Write `fields` as config.json, and the tensors, each file atomically."""
    fields = fields | {"torch_dtype": str(dtype).removeprefix("torch.")}
    write_bytes(folder / CONFIG, (json.dumps(fields, indent=2) + "\n").encode())
    write_bytes(folder / WEIGHTS, save(tensors, {"format": "pt"}))


def load_checkpoint(folder: Path) -> Eagle3Draft:
    """Read a draft for computing in float32.

    Raises:
        DraftError: a file is missing or damaged, or a tensor is missing, unknown, or of another shape or dtype.
    """
    config = DraftConfig.from_checkpoint(read_fields(folder / CONFIG))
    path = folder / WEIGHTS
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as exc:
        raise DraftError(f"{path} cannot be read: {exc}") from exc
    check_tensors(tensors, config, path)
    draft = Eagle3Draft(config)
    draft.load_state_dict({n: t.float() if t.is_floating_point() else t for n, t in tensors.items()})
    return draft


def load_draft(artifact: Shards) -> Eagle3Draft:
    """The verified draft of an artifact with parts "config" and "weights".

    Raises:
        ArtifactInvalid: a file is missing or altered.
        DraftError: as `load_checkpoint`.
    """
    config, weights = artifact.file("config"), artifact.file("weights")
    if config.parent != weights.parent:
        raise DraftError(f"{config} and {weights} lie in different folders")
    return load_checkpoint(weights.parent)


def read_fields(path: Path) -> dict[str, Any]:
    """The fields of a config.json.

    Raises:
        DraftError: it is missing or no JSON object.
    """
    try:
        fields: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise DraftError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(fields, dict):
        raise DraftError(f"{path} holds no JSON object")
    return fields


def check_tensors(tensors: Mapping[str, Tensor], config: DraftConfig, path: Path) -> None:
    """Hold names, shapes, dtypes and the mapping of a stored draft against its config.

    Raises:
        DraftError: names the tensors, and the file.
    """
    expected = expected_tensors(config)
    if missing := sorted(set(expected) - set(tensors)):
        raise DraftError(f"{path} lacks {', '.join(missing)}: the draft must be exported again")
    if unknown := sorted(set(tensors) - set(expected)):
        raise DraftError(f"{path} holds unknown tensors {', '.join(unknown)}: only SGLang's names can be read")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise DraftError(f"{path}: {name} has shape {list(tensor.shape)}, config.json says {list(shape)}")
        dtypes = {"d2t": (torch.int64,), "t2d": (torch.bool,)}.get(name, _COMPUTE)
        if tensor.dtype not in dtypes:
            raise DraftError(f"{path}: {name} has dtype {tensor.dtype}, one of {[str(d) for d in dtypes]} is expected")
    _check_mapping(tensors["d2t"], tensors["t2d"], path)


def _check_mapping(d2t: Tensor, t2d: Tensor, path: Path) -> None:
    ids = d2t + torch.arange(len(d2t))
    if _names(ids, t2d):
        return
    if _names(d2t, t2d):
        raise DraftError(
            f"{path}: d2t holds the target ids themselves, and offsets are expected: target id = draft id + d2t[draft "
            "id]. Subtract 0, 1, 2, ... from it"
        )
    raise DraftError(f"{path}: d2t and t2d contradict each other or leave the vocabulary of {len(t2d)}")


def _names(ids: Tensor, t2d: Tensor) -> bool:
    """Whether these are exactly the ids, each once, that t2d marks."""
    inside = bool(((ids >= 0) & (ids < len(t2d))).all())
    return inside and int(t2d.sum()) == len(ids.unique()) == len(ids) and bool(t2d[ids].all())
