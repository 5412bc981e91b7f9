"""Teacher-forced capture: batches of similar length through the target, states as raw bfloat16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import torch
from torch import Tensor

from schemas.corpus import HIDDEN_STATES, STATE_BYTES
from schemas.errors import ProbeFailed
from schemas.sections import ExtractionSpec
from tasks.target.decoding import ignore
from tasks.target.layers import default_aux_layers
from tasks.target.model import Target


def aux_layers(spec: ExtractionSpec, num_layers: int) -> list[int]:
    """The layers whose output is captured, 0-based."""
    return spec.aux_layers or list(default_aux_layers(num_layers))


def forecast_bytes(corpus: pa.Table, hidden_size: int) -> int:
    """Bytes that the states of these CORPUS rows take."""
    lengths = [len(ids) for ids in corpus["token_ids"]]
    served = [n - prompt + 1 for n, prompt in zip(lengths, corpus["prompt_length"].to_pylist(), strict=True)]
    return (3 * sum(lengths) + sum(served)) * hidden_size * STATE_BYTES


def cut_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Places of sequences, longest first, in batches of at most `batch_tokens` padded tokens, or one sequence."""
    batches: list[list[int]] = []
    room = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if room == 0:
            room = max(batch_tokens // lengths[place], 1)
            batches.append([])
        batches[-1].append(place)
        room -= 1
    return batches


def right_padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ids that begin together, int64 (B, longest)."""
    ids = torch.zeros(len(rows), max(len(row) for row in rows), dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
    return ids


def extract_table(
    target: Target, corpus: pa.Table, spec: ExtractionSpec, report: Callable[[int], None] = ignore
) -> pa.Table:
    """HIDDEN_STATES for the rows of a CORPUS table, in their order; `report` is told the ids of each batch.

    Raises:
        ProbeFailed: names a sequence whose states are not finite, or fewer than its ids.
    """
    rows = corpus.to_pylist()
    states: dict[int, tuple[bytes, bytes]] = {}
    for places, aux, last in captured(target, [row["token_ids"] for row in rows], spec):
        for index, place in enumerate(places):
            row = rows[place]
            length, served = len(row["token_ids"]), row["prompt_length"] - 1
            _check(row["sequence_id"], aux[index], last[index], length)
            states[place] = raw_bytes(aux[index, :length]), raw_bytes(last[index, served:length])
        report(sum(len(rows[place]["token_ids"]) for place in places))
    fixed = {"hidden_size": target.facts["hidden_size"], "dtype": "bfloat16"}
    kept = ("sequence_id", "split", "token_ids", "prompt_length")
    return HIDDEN_STATES.table(
        (
            {name: row[name] for name in kept}
            | fixed
            | {"aux": states[place][0], "last": states[place][1], "last_from": row["prompt_length"] - 1}
            for place, row in enumerate(rows)
        ),
        "hidden states",
    )


def captured(
    target: Target, sequences: Sequence[Sequence[int]], spec: ExtractionSpec
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Per batch: places of its sequences, aux (B, T, 3·hidden) and last (B, T, hidden), both bfloat16 on the CPU.

    Padding is on the right, where causal attention cannot see it, so that no mask is needed.
    """
    layers = aux_layers(spec, len(target.layers))
    for places in cut_batches([len(ids) for ids in sequences], spec.batch_tokens):
        ids = right_padded([sequences[place] for place in places]).to(target.device)
        aux, last = target.capture(ids, aux_layers=layers)
        yield places, aux.to(torch.bfloat16).cpu(), last.to(torch.bfloat16).cpu()


def raw_bytes(states: Tensor) -> bytes:
    """The bytes of a bfloat16 tensor, row by row."""
    return states.contiguous().view(torch.uint8).numpy().tobytes()


def _check(sequence: str, aux: Tensor, last: Tensor, length: int) -> None:
    for name, states in (("auxiliary", aux), ("last", last)):
        if len(states) < length:
            raise ProbeFailed(f"sequence {sequence} has {length} ids, but {len(states)} {name} states came back")
        if not bool(torch.isfinite(states[:length]).all()):
            where = int(torch.nonzero(~torch.isfinite(states[:length]).all(-1))[0, 0])
            raise ProbeFailed(
                f"sequence {sequence}: the {name} state at position {where} is not finite; "
                "set target.dtype to float32, or check the target's weights"
            )
