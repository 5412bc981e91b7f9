"""How a sequence's states lie on disk: a row of HIDDEN_STATES, written and read back. Knows no model and no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from schemas.corpus import MOST_CELL_BYTES, STATE_BYTES
from schemas.errors import ArtifactInvalid, StoreError
from schemas.extraction import ExtractionSpec, StateStorage
from tasks.states.source import AUX_STATES, Asked, Captured, TopTokens

_FLOAT8 = torch.float8_e4m3fn
_FLOAT8_VALUES = torch.arange(256, dtype=torch.uint8).view(_FLOAT8).float().numpy()
_BYTES: Mapping[str, float] = {"bfloat16": STATE_BYTES, "float8": 1}
_SCALE_BYTES = 4  # of a state that is stored as float8
_TOP_BYTES = 8  # an id and a log-probability


@dataclass(frozen=True)
class StoredStates:
    """A row, read back: one sequence, whose first tokens may have been left out."""

    token_ids: Tensor  # int64 (length,)
    prompt_length: int
    aux: Tensor  # bfloat16 (length, 3·hidden)
    last_from: int
    last: Tensor  # bfloat16 (length - last_from, hidden); no rows where `top` is given
    top: TopTokens | None


@dataclass(frozen=True)
class Kept:
    """What of a sequence is kept: its last ids, and the states from one of them on."""

    first: int  # position of the first id that is kept
    last_from: int  # position, counted from `first`, of the first state that teaches
    prompt_length: int  # counted from `first`

    @classmethod
    def of(cls, prompt_length: int, spec: ExtractionSpec) -> Kept:
        """All, or with `prompt_window` only so much of the prompt."""
        first = max(prompt_length - spec.prompt_window, 0) if spec.prompt_window else 0
        return cls(first, prompt_length - 1 - first, prompt_length - first)


def asked(row: Mapping[str, Any]) -> Asked:
    """What is asked for a CORPUS row. The state that samples the answer's first token is the first that teaches."""
    return Asked(row["sequence_id"], row["token_ids"], row["prompt_length"] - 1)


def state_row(row: Mapping[str, Any], found: Captured, hidden_size: int, spec: ExtractionSpec) -> dict[str, Any]:
    """The HIDDEN_STATES row of a CORPUS row."""
    kept = Kept.of(row["prompt_length"], spec)
    aux, aux_scales = _packed(found.aux[kept.first :].reshape(-1, hidden_size), spec.storage)
    last = found.aux.new_zeros(0, hidden_size) if found.last is None else found.last
    last_bytes, last_scales = _packed(last, spec.storage)
    top = found.top
    return {
        "place": found.place,
        "sequence_id": row["sequence_id"],
        "split": row["split"],
        "token_ids": row["token_ids"][kept.first :],
        "prompt_length": kept.prompt_length,
        "hidden_size": hidden_size,
        "dtype": spec.storage,
        "aux": aux,
        "last_from": kept.last_from,
        "last": last_bytes,
        "scales": aux_scales + last_scales,
        "top_k": spec.teacher_top_k,
        "top_ids": _raw(top.ids) if top else b"",
        "top_log_probabilities": _raw(top.log_probabilities) if top else b"",
    }


def stored_states(cells: Mapping[str, Any]) -> StoredStates:
    """Read a row back, in memory of its own; binary cells are anything with a buffer.

    Raises:
        ArtifactInvalid: a cell is not as long as the others say.
    """
    hidden, last_from, top_k = cells["hidden_size"], cells["last_from"], cells["top_k"]
    token_ids = torch.tensor(cells["token_ids"], dtype=torch.int64)
    length, taught = len(token_ids), len(token_ids) - last_from
    rows = AUX_STATES * length + (0 if top_k else taught)
    try:
        scales = _tensor(cells["scales"], torch.float32, (rows if cells["dtype"] == "float8" else 0,))
        aux = _unpacked(cells["aux"], cells["dtype"], scales[: AUX_STATES * length], (AUX_STATES * length, hidden))
        last_rows = 0 if top_k else taught
        last = _unpacked(cells["last"], cells["dtype"], scales[AUX_STATES * length :], (last_rows, hidden))
        ids = _tensor(cells["top_ids"], torch.int32, (taught if top_k else 0, top_k))
        scores = _tensor(cells["top_log_probabilities"], torch.float32, (taught if top_k else 0, top_k))
    except (RuntimeError, ValueError) as exc:
        raise ArtifactInvalid(f"states of sequence {cells['sequence_id']} have another length: {exc}") from exc
    if not last_from <= cells["prompt_length"] < length:
        raise ArtifactInvalid(f"sequence {cells['sequence_id']} lacks the states after its prompt")
    top = TopTokens(ids, scores) if top_k else None
    return StoredStates(token_ids, cells["prompt_length"], aux.view(length, -1), last_from, last, top)


def bytes_of(length: int, prompt_length: int, hidden_size: int, spec: ExtractionSpec) -> int:
    """Bytes of one sequence's states and ids, as forecast and as the least that a layout could take."""
    kept = Kept.of(prompt_length, spec)
    tokens, taught = length - kept.first, length - prompt_length + 1
    state = hidden_size * _BYTES[spec.storage] + (_SCALE_BYTES if spec.storage == "float8" else 0)
    teacher = _TOP_BYTES * spec.teacher_top_k if spec.teacher_top_k else state
    return int(AUX_STATES * tokens * state + taught * teacher)


def refuse_too_long(rows: Sequence[tuple[str, int]], hidden_size: int, spec: ExtractionSpec) -> None:
    """Refuse sequences whose states do not fit in one Parquet cell, which counts its bytes in 32 bits.

    Args:
        rows: name and kept tokens of each sequence.

    Raises:
        StoreError: names the sequence, and the length that would fit.
    """
    most = MOST_CELL_BYTES // int(AUX_STATES * hidden_size * _BYTES[spec.storage])
    for name, tokens in rows:
        if tokens > most:
            raise StoreError(
                f"sequence {name} has {tokens:,} tokens, and the states of at most {most:,} fit in a cell of a Parquet "
                "file: lower corpus.max_length, or set extraction.prompt_window, storage: float8 or online"
            )


def _packed(states: Tensor, storage: StateStorage) -> tuple[bytes, bytes]:
    """Bytes of (rows, hidden) states, and of their scales."""
    if storage == "bfloat16":
        return _raw(states.to(torch.bfloat16)), b""
    values = states.float()
    scales = values.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / torch.finfo(_FLOAT8).max
    return _raw((values / scales[:, None]).to(_FLOAT8)), _raw(scales)


def _unpacked(cell: Any, storage: str, scales: Tensor, shape: tuple[int, int]) -> Tensor:
    if storage == "bfloat16":
        return _tensor(cell, torch.bfloat16, shape)
    codes = np.frombuffer(cell, np.uint8)
    if codes.size != shape[0] * shape[1]:
        raise ValueError(f"{codes.size} bytes for {shape}")
    values = torch.from_numpy(np.take(_FLOAT8_VALUES, codes)).view(shape)  # a cast of the tensor takes 3 times as long
    return values.mul_(scales[:, None]).to(torch.bfloat16)


def _tensor(cell: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    content = bytearray(cell)
    if not content:
        return torch.zeros(0, dtype=dtype).view(shape)
    return torch.frombuffer(content, dtype=dtype).view(shape)


def _raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor, row by row."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
