"""Which layers fed a parent is found out, what it reached is reproduced or the run stops, and its weights are kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.corpus import VOCABULARY
from schemas.errors import DraftError
from schemas.sections import ComputeSpec, DraftSpec, ParentSpec, TargetSpec
from schemas.warm_start import READINGS
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.draft.adoption import embedding_sha256
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_draft, write_checkpoint
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target
from tasks.train.initialise import draft_config, fresh_draft
from tasks.train.sequence import Sequence
from tasks.train.simulated import SimulatedAcceptance
from tasks.train.warm_start import Reached, check_reproduced, choose_reading, initialise_from_parent
from tests.rows import run_body, stored
from tests.train.small import random_sequence
from tests.train.states import SPEC, stored_states

HIDDEN, VOCAB = 64, 49152
COMPUTE = ComputeSpec(training_threads=1)
READINGS_OF_IDS = {"input_to_layer": [1, 2, 3], "output_of_layer": [2, 3, 4]}


@pytest.fixture(scope="module")
def oracle(tiny_loaded: Target, tiny_artifact: Shards) -> Eagle3Draft:
    """A draft that says what the target's head reads off the highest of the three states, and adds nothing to it."""
    config = draft_config(tiny_artifact.facts, DraftSpec(), VOCAB, [1, 2, 3])
    draft = fresh_draft(config, torch.arange(VOCAB), seed=0)
    with torch.no_grad():
        draft.fc.weight.zero_()
        draft.fc.weight[:, -HIDDEN:] = torch.eye(HIDDEN)
        draft.midlayer.self_attn.o_proj.weight.zero_()
        draft.midlayer.mlp.down_proj.weight.zero_()
        draft.norm.weight.fill_(1)
        draft.lm_head.weight.copy_(tiny_loaded.model.get_output_embeddings().weight)
    return draft


def told_sequence(seed: int) -> Sequence:
    """A sequence whose highest auxiliary state is the last state of the position after it."""
    plain = random_sequence(4, 12, seed, HIDDEN, VOCAB)
    aux = plain.aux.clone()
    aux[plain.last_from : -1, -HIDDEN:] = plain.last[1:]
    return Sequence(plain.token_ids, aux, plain.last, plain.last_from, plain.prompt_length)


def parent_of(draft: Eagle3Draft, name: str = "parent", **facts: Any) -> Shards:
    space = Workspace(f"adopt_parent/{name}.parquet")
    write_checkpoint(space.ensure_folder(), draft, torch.float32)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    known = {
        "model": "parent",
        "readings": READINGS_OF_IDS,
        "full_vocabulary": True,
        "recorded": None,
        "embedding_sha256": "",
    }
    return space.publish(known | facts)


def vocabulary_of(ids: list[int]) -> Shards:
    rows = [{"draft_id": n, "target_id": target, "count": 1, "forced": False} for n, target in enumerate(ids)]
    return stored(f"vocabulary-{len(ids)}", "vocabulary", VOCABULARY, [VOCABULARY.table(rows)])


def test_the_reading_that_accepts_more_is_kept(
    store: Path, oracle: Eagle3Draft, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    blind = stored_states([random_sequence(4, 12, seed, HIDDEN, VOCAB) for seed in range(6)], "blind")
    told = stored_states([told_sequence(seed) for seed in range(6)], "told")
    states = {"input_to_layer": blind, "output_of_layer": told}
    found = run_body(choose_reading, tiny_artifact, parent_of(oracle), states, SPEC, tiny_spec, COMPUTE)
    assert found.facts["reading"] == "output_of_layer"
    assert found.facts["aux_layers"] == [2, 3, 4]
    assert found.facts["lengths"]["output_of_layer"] > 1.95 > found.facts["lengths"]["input_to_layer"]
    rows = READINGS.check(found.table("readings"), "readings").to_pylist()
    assert {(row["reading"], row["kept"]) for row in rows} == {("input_to_layer", False), ("output_of_layer", True)}
    kept = [row for row in rows if row["kept"] and row["position"] == 0]
    assert kept[0]["survived"] == kept[0]["chains"] > 0


def first_weights(target: Shards, spec: TargetSpec, parent: Shards, ids: list[int], **changes: Any) -> Shards:
    states = [stored_states([told_sequence(seed) for seed in range(8)], "states")]
    given = ParentSpec(model="parent", **changes)
    return run_body(initialise_from_parent, target, parent, vocabulary_of(ids), states, given, SPEC, 0, spec, COMPUTE)


def test_the_first_weights_are_the_parents(
    store: Path, oracle: Eagle3Draft, tiny_artifact: Shards, tiny_spec: TargetSpec, tiny_loaded: Target
) -> None:
    embedding = embedding_sha256(tiny_loaded.model.get_input_embeddings().weight)
    parent = parent_of(oracle, embedding_sha256=embedding)
    found = first_weights(tiny_artifact, tiny_spec, parent, list(range(VOCAB)))
    draft, before = load_draft(found), oracle.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in draft.state_dict().items())
    assert found.facts["simulated_acceptance"][0] == 1.0
    assert found.facts["aux_layers"] == [1, 2, 3] == list(draft.config.aux_layers)
    assert len(found.facts["aux_scale"]) == 3


def test_a_whole_head_is_cut_to_the_vocabulary(
    store: Path, oracle: Eagle3Draft, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    ids = list(range(7, 900, 3))
    draft = load_draft(first_weights(tiny_artifact, tiny_spec, parent_of(oracle), ids))
    assert draft.target_ids().tolist() == ids
    assert torch.equal(draft.lm_head.weight, oracle.lm_head.weight[ids])
    assert int(draft.t2d.sum()) == len(ids)


def test_embeddings_of_another_model_stop_the_run(
    store: Path, oracle: Eagle3Draft, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    parent = parent_of(oracle, embedding_sha256="0" * 64)
    with pytest.raises(DraftError, match="embeddings that are not the target's"):
        first_weights(tiny_artifact, tiny_spec, parent, list(range(VOCAB)))


def test_another_vocabulary_than_the_parents_stops_the_run(
    store: Path, oracle: Eagle3Draft, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    small = Eagle3Draft(DraftConfig.model_validate(oracle.config.model_dump() | {"draft_vocab_size": 50}))
    small.set_vocabulary(torch.arange(0, 100, 2))
    with pytest.raises(DraftError, match="not the parent's"):
        first_weights(tiny_artifact, tiny_spec, parent_of(small, full_vocabulary=False), list(range(50)))


def reached(*survived: list[int]) -> Reached:
    return Reached([SimulatedAcceptance(list(one), [10, 10, 10]) for one in survived])


def recorded(*acceptance: float) -> dict[str, Any]:
    return {"simulated_acceptance": list(acceptance)}


SPREAD = reached(*([6, 3, 1] for _ in range(20)), *([4, 1, 1] for _ in range(20)))  # length 1.8, 0.03 wide


def test_what_the_parent_recorded_is_reproduced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "eyas.train"):
        check_reproduced(SPREAD, recorded(0.5, 0.25, 0.1), ParentSpec(model="p"), 0)
    assert "1.800 here, 1.850 is known" in caplog.text


def test_less_than_recorded_stops_the_run_with_the_figures() -> None:
    with pytest.raises(DraftError, match=r"1\.800 \(95 % interval up to 1\.8\d\d\) with 3 drafted tokens, and 2\.400"):
        check_reproduced(SPREAD, recorded(0.8, 0.4, 0.2), ParentSpec(model="p"), 0)


def test_a_known_length_counts_before_the_record_and_with_its_own_depth() -> None:
    assert SPREAD.length(2) == pytest.approx(1.7)
    check_reproduced(SPREAD, recorded(0.9, 0.9, 0.9), ParentSpec(model="p", length=1.75, drafted=2), 0)
    with pytest.raises(DraftError, match=r"with 2 drafted tokens, and 2\.500"):
        check_reproduced(SPREAD, None, ParentSpec(model="p", length=2.5, drafted=2), 0)


def test_a_parent_of_which_nothing_is_known_is_said_to_be_unproven(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "eyas.train"):
        check_reproduced(SPREAD, None, ParentSpec(model="p"), 0)
    assert "its export records none" in caplog.text
