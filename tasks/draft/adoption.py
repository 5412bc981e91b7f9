"""A draft that somebody else stored, checked against the target and brought into our layout.

Weights keep their bytes and the vocabulary its ids; what cannot be kept is refused by name. Which layers feed it stays
open where its config can be read in two ways: the likeliest reading is written, the others are named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import DraftError
from tasks.draft.checkpoint import CONFIG, check_tensors, expected_tensors, read_fields, write_tensors
from tasks.draft.config import DraftConfig
from tasks.draft.foreign import ForeignConfig, read_foreign_config
from tasks.draft.record import RECORD, DraftRecord, read_record
from tasks.draft.stored import StoredTensors, stored_tensors

EMBEDDING = "embed_tokens.weight"
_MAPPING = ("d2t", "t2d")
_RECORDED = "recorded"  # the reading of layers that the draft's own export wrote down


def adopt(folder: Path, target: Mapping[str, Any], into: Path) -> dict[str, Any]:
    """Read the draft in `folder`, check it against the target's facts, and write it into another folder.

    Returns:
        `readings` (layers by what its ids may mean), `full_vocabulary`, `recorded` (its export's record or None),
        `embedding_sha256` (of the token embeddings it carries, "" without) and `layout`.

    Raises:
        DraftError: its files are damaged, of another kind of draft or of another target; names the field or tensor.
    """
    foreign, record = read_foreign_config(read_fields(folder / CONFIG)), read_record(folder / RECORD)
    _check_target(foreign, target, folder)
    readings = _readings(foreign, record, target["num_layers"], folder)
    config = _our_config(foreign, next(iter(readings.values())), target)
    with stored_tensors(folder) as stored:
        tensors, embedding = _our_tensors(stored, config)
        check_tensors(tensors, config, folder)
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(dtypes) != 1:
        raise DraftError(f"{folder} mixes the dtypes {sorted(map(str, dtypes))}: one is expected")
    write_tensors(into, config.to_checkpoint(), tensors, dtypes.pop())
    return {
        "layout": foreign.layout,
        "readings": readings,
        "full_vocabulary": config.draft_vocab_size == config.vocab_size,
        "recorded": record.model_dump(mode="json") if record else None,
        "embedding_sha256": embedding,
    }


def embedding_sha256(embedding: Tensor) -> str:
    """Of token embeddings as bfloat16, in which drafts store them."""
    raw = embedding.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def _check_target(foreign: ForeignConfig, target: Mapping[str, Any], folder: Path) -> None:
    for field, fact in (("vocab_size", "vocab_size"), ("target_hidden_size", "hidden_size")):
        if foreign.fields[field] != target[fact]:
            raise DraftError(
                f"{folder} is a draft of another target: its {field} is {foreign.fields[field]}, "
                f"the target's {fact} is {target[fact]}"
            )


def _readings(
    foreign: ForeignConfig, record: DraftRecord | None, num_layers: int, folder: Path
) -> dict[str, list[int]]:
    readings = foreign.readings(num_layers)
    if record is None:
        return readings
    if list(record.aux_layers) not in readings.values():
        raise DraftError(
            f"{folder}: {RECORD} says that the outputs of layers {list(record.aux_layers)} feed the draft, and "
            f"{CONFIG} can only mean {list(readings.values())}: one of the files belongs to another draft"
        )
    return {_RECORDED: list(record.aux_layers)}


def _our_config(foreign: ForeignConfig, aux_layers: list[int], target: Mapping[str, Any]) -> DraftConfig:
    """The draft's shape; positions and control ids are the target's, since a draft's own are often too small."""
    ends = target["eos_ids"]
    return foreign.at(tuple(aux_layers)).model_copy(
        update={
            "max_position_embeddings": target["context"],
            "bos_token_id": target["bos_id"],
            "eos_token_id": ends[0] if len(ends) == 1 else ends,
            "pad_token_id": target["pad_id"],
        }
    )


def _our_tensors(stored: StoredTensors, config: DraftConfig) -> tuple[dict[str, Tensor], str]:
    """The tensors that our layout has, and the SHA-256 of embeddings that are the target's."""
    names, expected = stored.names(), expected_tensors(config)
    shared = EMBEDDING in names and EMBEDDING not in expected
    whole = config.draft_vocab_size == config.vocab_size and not names & set(_MAPPING)
    wanted = set(expected) - set(_MAPPING) if whole else set(expected)
    if missing := sorted(wanted - names):
        raise DraftError(f"{stored.place} lacks the tensors {', '.join(missing)}: the draft is not whole")
    if unknown := sorted(names - wanted - {EMBEDDING}):
        raise DraftError(
            f"{stored.place} holds the tensors {', '.join(unknown)}, which belong to no draft that its {CONFIG} "
            "describes: leaving them out would change what it computes"
        )
    for name in sorted(wanted):  # before gigabytes are read
        if stored.shape(name) != expected[name]:
            raise DraftError(
                f"{stored.place}: {name} has shape {list(stored.shape(name))}, {CONFIG} says {list(expected[name])}"
            )
    tensors = {name: stored.read(name).contiguous() for name in expected if name in wanted}
    if whole:
        tensors["d2t"] = torch.zeros(config.draft_vocab_size, dtype=torch.int64)
        tensors["t2d"] = torch.ones(config.vocab_size, dtype=torch.bool)
    return tensors, embedding_sha256(stored.read(EMBEDDING)) if shared else ""
