"""The two tasks over a tiny target: from hidden states to a trained draft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from schemas.corpus import CORPUS, VOCABULARY
from schemas.errors import DraftError
from schemas.measures import TRAINING_CURVE
from schemas.sections import BenchmarkSpec, ComputeSpec, DraftSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.draft.checkpoint import load_draft
from tasks.train.task import initialise_draft, simulate_acceptance, train_draft
from tests.rows import run_body, stored
from tests.train.small import random_sequence
from tests.train.states import SPEC, stored_states

COMPUTE = ComputeSpec(training_threads=1)


def vocabulary_of(*target_ids: int) -> Shards:
    rows = [{"draft_id": n, "target_id": target, "count": 1, "forced": False} for n, target in enumerate(target_ids)]
    return stored(f"vocabulary-{len(target_ids)}", "vocabulary", VOCABULARY, [VOCABULARY.table(rows)])


def test_from_states_to_a_trained_draft(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    sequences = [random_sequence(3, 9, seed, hidden=64, vocab=49152) for seed in range(8)]
    states, vocabulary = [stored_states(sequences, "states")], vocabulary_of(*range(0, 1000, 5))
    given = (vocabulary, states)
    initial = run_body(initialise_draft, tiny_artifact, *given, DraftSpec(), 3, tiny_spec, COMPUTE)
    trained = run_body(train_draft, tiny_artifact, initial, *given, SPEC, 3, tiny_spec, COMPUTE)

    first, last = load_draft(initial), load_draft(trained)
    assert last.target_ids().tolist() == list(range(0, 1000, 5))
    assert not torch.equal(first.fc.weight, last.fc.weight)
    assert trained.facts["aux_scale"] == initial.facts["aux_scale"]
    curve = TRAINING_CURVE.check(trained.table("curve"), "curve").to_pylist()
    assert {row["kind"] for row in curve} == {"loss", "learning_rate", "simulated_acceptance", "simulated_length"}
    assert trained.measures["steps"] == trained.facts["steps"]
    assert [path.name for path in trained.file("weights").parent.glob("checkpoint-*")] == []

    rows = [
        {
            "sequence_id": f"{number:032x}",
            "dataset": "code" if number == 3 else "general",
            "split": "heldout" if number % 4 == 3 else "train",
            "token_ids": sequence.token_ids.tolist(),
            "prompt_length": sequence.prompt_length,
        }
        for number, sequence in enumerate(sequences)
    ]
    corpus = stored("corpus", CORPUS.name, CORPUS, [CORPUS.table(rows)])
    bench = BenchmarkSpec(chain=2)
    simulated = run_body(simulate_acceptance, tiny_artifact, trained, states, corpus, bench, 3, tiny_spec, COMPUTE)
    found = {row["group"] + row["name"]: row for row in simulated.table("simulated").to_pylist()}
    assert set(found) == {"all", "datasetcode", "datasetgeneral", "context0 to 127"}
    assert found["all"]["chains"] == [16, 14]  # two held-out answers of nine tokens
    assert found["datasetcode"]["chains"] == [8, 7]
    last_share = [row["value"] for row in curve if row["kind"] == "simulated_acceptance" and row["position"] == 0][-1]
    assert found["all"]["survived"][0] / 16 == last_share  # what training measured at its end

    again = run_body(train_draft, tiny_artifact, initial, *given, SPEC, 3, tiny_spec, COMPUTE, name="again")
    assert again.digest() == trained.digest()
    with pytest.raises(DraftError, match="another vocabulary"):
        run_body(
            train_draft, tiny_artifact, initial, vocabulary_of(1, 2), states, SPEC, 3, tiny_spec, COMPUTE, name="other"
        )


def test_states_of_other_layers_than_the_draft_reads_are_refused(
    store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    sequences = [random_sequence(3, 9, seed, hidden=64, vocab=49152) for seed in range(4)]
    states, vocabulary = [stored_states(sequences, "states")], vocabulary_of(*range(0, 1000, 5))
    initial = run_body(initialise_draft, tiny_artifact, vocabulary, states, DraftSpec(), 3, tiny_spec, COMPUTE)
    others = [states[0].model_copy(update={"facts": {"aux_layers": [1, 2, 4]}})]
    with pytest.raises(DraftError, match=r"of layers \[1, 2, 4\], the draft reads \(1, 2, 3\)"):
        run_body(
            train_draft, tiny_artifact, initial, vocabulary, others, SPEC, 3, tiny_spec, COMPUTE, name="other layers"
        )


@pytest.mark.slow
def test_two_processes_give_the_draft_of_one(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    sequences = [random_sequence(3, 9, seed, hidden=64, vocab=49152) for seed in range(8)]
    states, vocabulary = [stored_states(sequences, "states")], vocabulary_of(*range(0, 1000, 5))
    initial = run_body(initialise_draft, tiny_artifact, vocabulary, states, DraftSpec(), 3, tiny_spec, COMPUTE)
    alone, together = (
        run_body(
            train_draft,
            tiny_artifact,
            initial,
            vocabulary,
            states,
            SPEC,
            3,
            tiny_spec,
            ComputeSpec(training_threads=1, training_processes=processes),
            name=f"{processes} processes",
        )
        for processes in (1, 2)
    )
    assert alone.facts == together.facts
    torch.testing.assert_close(load_draft(together).fc.weight, load_draft(alone).fc.weight, rtol=1e-3, atol=1e-4)
    curves = [[row["value"] for row in one.table("curve").to_pylist()] for one in (alone, together)]
    assert curves[1] == pytest.approx(curves[0], rel=1e-3, abs=1e-3)
    left = {path.name for path in together.file("weights").parent.iterdir()}
    assert not left & {"request.json", "trained.json"}
