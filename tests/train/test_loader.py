"""The stream of sequences: complete, seeded, a pure function of the step, and strict about what it reads."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ArtifactInvalid, DraftError
from tasks.train import loader
from tasks.train.loader import BatchPlan, SequenceStore, prefetched
from tests.train.small import random_sequence
from tests.train.states import small_states, stored_states


def test_sequences_come_back_as_they_were_stored(store: Path) -> None:
    sequences = [random_sequence(2 + n % 5, 1 + n % 9, seed=n) for n in range(24)]
    found = SequenceStore(small_states(), "train")
    wanted = [sequence for n, sequence in enumerate(sequences) if n % 12 % 4 != 3]
    assert len(found) == len(wanted) == 18
    for number, sequence in enumerate(wanted):
        read = found.read(number)
        assert torch.equal(read.token_ids, sequence.token_ids)
        assert torch.equal(read.aux, sequence.aux)
        assert torch.equal(read.last, sequence.last)
        assert (read.last_from, read.prompt_length) == (sequence.last_from, sequence.prompt_length)


def test_more_shards_than_open_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_OPEN_FILES", 1)
    found = SequenceStore(small_states(), "train")
    first = found.read(0)
    found.read(17)
    assert torch.equal(found.read(0).aux, first.aux)


@given(sequences=st.integers(1, 40), batch=st.integers(1, 7), epochs=st.integers(1, 4), seed=st.integers(0, 2**31 - 1))
def test_every_epoch_sees_every_sequence_once(sequences: int, batch: int, epochs: int, seed: int) -> None:
    plan = BatchPlan(sequences, batch, epochs, seed)
    stream = [index for step in range(plan.steps) for index in plan.batch(step)]
    for epoch in range(epochs):
        assert Counter(stream[epoch * sequences : (epoch + 1) * sequences]) == Counter(range(sequences))
    assert len(stream) - epochs * sequences < batch


@given(sequences=st.integers(1, 40), batch=st.integers(1, 7), step=st.integers(0, 200))
def test_a_batch_depends_on_seed_and_step_only(sequences: int, batch: int, step: int) -> None:
    walked = BatchPlan(sequences, batch, 10, 3)
    for earlier in range(step):
        walked.batch(earlier)
    assert walked.batch(step) == BatchPlan(sequences, batch, 10, 3).batch(step)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    plan = BatchPlan(50, 50, 2, 0)
    assert plan.batch(0) != plan.batch(1)
    assert plan.batch(0) != BatchPlan(50, 50, 2, 1).batch(0)


@pytest.mark.parametrize(("epochs", "steps"), [(0.01, 1), (0.5, 2), (1, 4), (1.5, 5)])
def test_fractions_of_epochs(epochs: float, steps: int) -> None:
    assert BatchPlan(10, 3, epochs, 0).steps == steps


def test_prefetching_gives_the_planned_batches_from_any_step(store: Path) -> None:
    found = SequenceStore(small_states(), "train")
    plan = BatchPlan(len(found), 4, 2, 0)
    for start in (0, 1, plan.steps - 1, plan.steps):
        with prefetched(found, plan, start) as batches:
            read = [[sequence.token_ids.tolist() for sequence in batch] for batch in batches]
        wanted = [
            [found.read(index).token_ids.tolist() for index in plan.batch(step)] for step in range(start, plan.steps)
        ]
        assert read == wanted


def test_the_reading_thread_ends_with_the_block(store: Path) -> None:
    found = SequenceStore(small_states(), "train")
    with prefetched(found, BatchPlan(18, 4, 2, 0), 0) as batches:
        next(batches)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("load")]


@pytest.mark.parametrize("which", ["aux", "last"])
def test_a_state_that_is_not_finite_is_refused_by_name(store: Path, which: str) -> None:
    sequences = [random_sequence(3, 6, seed=n) for n in range(2)]
    getattr(sequences[1], which)[2, 5] = float("nan")
    found = SequenceStore([stored_states(sequences, "broken")], "train")
    found.read(0)
    with pytest.raises(ArtifactInvalid, match=r"states of positions \d of sequence 0{31}1 are not finite"):
        found.read(1)


def test_an_altered_shard_is_refused(store: Path) -> None:
    states = small_states()
    path = states[0].shards[0].locate()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactInvalid, match="SHA-256"):
        SequenceStore(states, "train")


def test_a_missing_split_is_an_error(store: Path) -> None:
    states = [stored_states([random_sequence(3, 4, 0)], "one")]
    with pytest.raises(DraftError, match="heldout"):
        SequenceStore(states, "heldout")
