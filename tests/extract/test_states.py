"""Stored states are the target's own, with the place of their row in the corpus, for every id."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from schemas.corpus import CORPUS
from schemas.errors import ProbeFailed
from schemas.extraction import ExtractionSpec
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.extract.states import extracted, forecast_bytes
from tasks.extract.task import extract_states
from tasks.states.embedded import EmbeddedSource, cut_batches
from tasks.states.source import Asked
from tasks.target.model import Target
from tests.rows import run_body, stored

HIDDEN = 64
SPEC = ExtractionSpec(batch_tokens=48)
LENGTHS = [5, 31, 12, 7, 24, 2, 18]


def corpus(lengths: list[int]) -> pa.Table:
    generator = torch.Generator().manual_seed(0)
    return CORPUS.table(
        {
            "sequence_id": f"{number:032x}",
            "dataset": "chat",
            "split": "train",
            "token_ids": torch.randint(0, 49152, (length,), generator=generator).tolist(),
            "prompt_length": max(1, length // 2),
        }
        for number, length in enumerate(lengths)
    )


def extract(target: Target, table: pa.Table, spec: ExtractionSpec = SPEC) -> list[dict[str, Any]]:
    """Rows in the order of the corpus."""
    pieces = extracted(EmbeddedSource(target, spec), table, HIDDEN, spec)
    return sorted((row for piece in pieces for row in piece.to_pylist()), key=lambda row: row["place"])


def decoded(cell: bytes, width: int) -> Tensor:
    return torch.frombuffer(bytearray(cell), dtype=torch.bfloat16).reshape(-1, width)


def test_stored_bytes_decode_to_the_states_of_transformers(tiny_loaded: Target) -> None:
    table = corpus(LENGTHS)
    rows = extract(tiny_loaded, table)
    assert [row["sequence_id"] for row in rows] == table["sequence_id"].to_pylist()
    for row in rows:
        ids = torch.tensor([row["token_ids"]])
        states = tiny_loaded.decoder(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        aux = torch.cat([states[2], states[3], states[4]], dim=-1)[0]
        assert row["last_from"] == row["prompt_length"] - 1
        torch.testing.assert_close(decoded(row["aux"], 3 * HIDDEN), aux.bfloat16(), rtol=2**-7, atol=1e-3)
        last = states[-1][0, row["last_from"] :].bfloat16()
        torch.testing.assert_close(decoded(row["last"], HIDDEN), last, rtol=2**-7, atol=1e-3)


def test_a_sequence_alone_is_stored_bit_for_bit(tiny_loaded: Target) -> None:
    (row,) = extract(tiny_loaded, corpus([21]))
    aux, last = tiny_loaded.capture(torch.tensor([row["token_ids"]]), aux_layers=(1, 2, 3))
    assert torch.equal(decoded(row["aux"], 3 * HIDDEN), aux[0].bfloat16())
    assert torch.equal(decoded(row["last"], HIDDEN), last[0, row["last_from"] :].bfloat16())


def test_every_sequence_is_in_one_batch_of_bounded_size() -> None:
    batches = cut_batches(LENGTHS, 48)
    assert sorted(place for batch in batches for place in batch) == list(range(len(LENGTHS)))
    assert all(len(batch) * max(LENGTHS[place] for place in batch) <= 48 for batch in batches)
    assert cut_batches([500], 48) == [[0]]


def test_the_forecast_is_what_the_states_take(tiny_loaded: Target) -> None:
    table = corpus(LENGTHS)
    rows = extract(tiny_loaded, table)
    assert forecast_bytes(table, HIDDEN, SPEC) == sum(len(row["aux"]) + len(row["last"]) for row in rows)


def test_states_that_are_not_finite_are_refused_by_sequence(
    tiny_loaded: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(ids: Tensor, *, aux_layers: object) -> tuple[Tensor, Tensor]:
        aux = torch.zeros(*ids.shape, 3 * HIDDEN)
        aux[:, 4] = float("nan")
        return aux, torch.zeros(*ids.shape, HIDDEN)

    monkeypatch.setattr(tiny_loaded, "capture", broken)
    with pytest.raises(ProbeFailed, match=f"sequence {1:032x}: the auxiliary state at position 4 is not finite"):
        extract(tiny_loaded, corpus([3, 12]))


def test_fewer_states_than_ids_are_refused(tiny_loaded: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(ids: Tensor, *, aux_layers: object) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(ids), ids.shape[1] - 1, 3 * HIDDEN), torch.zeros(*ids.shape, HIDDEN)

    monkeypatch.setattr(tiny_loaded, "capture", short)
    with pytest.raises(ProbeFailed, match="has 12 ids, of which 12 need auxiliary states, but 11"):
        extract(tiny_loaded, corpus([12]))


def test_no_more_than_a_batch_is_held(tiny_loaded: Target) -> None:
    source = EmbeddedSource(tiny_loaded, SPEC)
    asked = [Asked(str(length), [5] * length, 0) for length in LENGTHS]
    batches = list(source.states(asked))
    assert sorted(found.place for batch in batches for found in batch) == list(range(len(LENGTHS)))
    assert all(len(batch) * max(len(found.aux) for found in batch) <= SPEC.batch_tokens for batch in batches)
    for found in (found for batch in batches for found in batch):
        assert found.last is not None
        assert found.aux.dtype == found.last.dtype == torch.bfloat16
        assert len(found.aux) == len(found.last) == LENGTHS[found.place]


def test_the_task_stores_one_sequence_per_row_group(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    given = stored("build_corpus", "corpus", CORPUS, [corpus(LENGTHS)])
    arguments = (tiny_artifact, given, SPEC, tiny_spec, ComputeSpec())
    first = run_body(extract_states, *arguments, name="one")
    assert first.facts["aux_layers"] == [1, 2, 3]
    assert first.facts["tokens"] == sum(LENGTHS)
    assert first.rows("hidden_states") == len(LENGTHS)
    assert pq.read_metadata(first.file("hidden_states")).num_row_groups == len(LENGTHS)
    assert run_body(extract_states, *arguments, name="two").digest() == first.digest()
