"""Lost mass is what the target's softmax gives to tokens outside the vocabulary, by dataset of the held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from schemas.corpus import CORPUS, VOCABULARY
from schemas.errors import ArtifactInvalid
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.target.model import Target
from tasks.train.lost_mass import measure_lost_mass, outside_mass
from tasks.train.sequence import Sequence
from tests.rows import run_body, stored
from tests.train.small import random_sequence
from tests.train.states import stored_states

IDS = list(range(0, 49152, 2))


def test_mass_and_likeliest_token_outside_are_counted_row_by_row() -> None:
    states, head = torch.randn(300, 8), torch.randn(50, 8)
    ids = torch.arange(0, 50, 3)
    lost, outside = outside_mass(states, head, ids)
    shares = torch.softmax(states @ head.T, -1)
    torch.testing.assert_close(lost, 1 - shares[:, ids].sum(-1))
    assert outside.tolist() == [int(best) not in ids.tolist() for best in shares.argmax(-1)]


def corpus_of(sequences: list[Sequence]) -> Shards:
    rows = [
        {
            "sequence_id": f"{number:032x}",
            "dataset": "code" if number == 3 else "chat",
            "split": "heldout" if number % 4 == 3 else "train",
            "token_ids": sequence.token_ids.tolist(),
            "prompt_length": sequence.prompt_length,
        }
        for number, sequence in enumerate(sequences)
    ]
    return stored("corpus", "corpus", CORPUS, [CORPUS.table(rows)])


def test_every_dataset_of_the_held_out_sequences_has_its_row(
    store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec, tiny_loaded: Target
) -> None:
    sequences = [random_sequence(3, 9, seed, hidden=64, vocab=49152) for seed in range(8)]
    rows = [{"draft_id": n, "target_id": target, "count": 1, "forced": False} for n, target in enumerate(IDS)]
    vocabulary = stored("vocabulary", "vocabulary", VOCABULARY, [VOCABULARY.table(rows)])
    given = (tiny_artifact, vocabulary, corpus_of(sequences), [stored_states(sequences, "states")])
    found = cast(Rows, run_body(measure_lost_mass, *given, tiny_spec, ComputeSpec()))
    rows = {row["dataset"]: row for row in found.table.to_pylist()}
    assert set(rows) == {"chat", "code"}
    for dataset, number in (("code", 3), ("chat", 7)):
        states = sequences[number].teacher_states().float()
        shares = torch.softmax(states @ tiny_loaded.model.get_output_embeddings().weight.T, -1)
        assert rows[dataset]["positions"] == len(states) == 8
        assert rows[dataset]["lost_mass"] == pytest.approx(float(1 - shares[:, IDS].sum(-1).mean()), abs=1e-5)
        assert rows[dataset]["best_outside"] == sum(int(best) % 2 for best in shares.argmax(-1))


def test_states_of_another_corpus_are_refused(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    sequences = [random_sequence(3, 9, seed, hidden=64, vocab=49152) for seed in range(4)]
    rows = [{"draft_id": n, "target_id": target, "count": 1, "forced": False} for n, target in enumerate(IDS)]
    vocabulary = stored("vocabulary", "vocabulary", VOCABULARY, [VOCABULARY.table(rows)])
    given = (tiny_artifact, vocabulary, corpus_of(sequences), [stored_states(sequences, "states", first=90)])
    with pytest.raises(ArtifactInvalid, match=f"no sequence {93:032x}"):
        run_body(measure_lost_mass, *given, tiny_spec, ComputeSpec())
