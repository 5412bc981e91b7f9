"""Training ends with the same weights whatever the threads and the kills, and it learns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from schemas.errors import DraftError
from schemas.sections import TrainingSpec
from tasks.draft.model import Eagle3Draft
from tasks.train.checkpoints import Checkpoint, Checkpoints
from tasks.train.loader import SequenceSource
from tasks.train.loop import RECORD_EVERY, Training
from tasks.train.optimiser import learning_rate
from tasks.train.sequence import Sequence
from tasks.train.simulated import HeldOut, SimulatedAcceptance
from tests.train.small import random_sequence
from tests.train.states import SPEC, result, run_whole, small_states, small_training, stored_states


class Killed(Exception):
    """Stands for the end of the process."""


def run_until(training: Training, folder: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Training._step

    def stop_at(self: Training, number: int, *rest: object) -> None:
        if number == step:
            raise Killed
        original(self, number, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", stop_at)
        with pytest.raises(Killed):
            training.run(folder, 1)


EVERYTHING = SPEC.model_copy(
    update={"loss": "lk_lambda", "schedule": "wsd", "floor": 0.1, "keep": "best", "micro_sequences": 2, "patience": 9}
)


@pytest.mark.parametrize(
    ("stops", "spec"),
    [*((stops, SPEC) for stops in ([0], [3], [4], [9], [13, 21], [5, 6, 23])), ([4, 14, 21], EVERYTHING)],
    ids=str,
)
def test_a_killed_run_ends_like_an_undisturbed_one(
    store: Path, tmp_path: Path, stops: list[int], spec: TrainingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = small_states()
    whole = run_whole(states, tmp_path / "whole", spec=spec)
    folder = tmp_path / "killed"
    folder.mkdir()
    for stop in stops:
        run_until(small_training(states, spec)[0], folder, stop, monkeypatch)
    training, draft = small_training(states, spec)
    training.run(folder, 1)
    assert result(training, draft) == whole
    if stops[-1] > SPEC.checkpoint_every:
        assert training.clock.steps < training.steps


@pytest.mark.parametrize("at_once", [1, 2])
def test_gradients_added_up_bit_by_bit_are_those_of_the_whole_batch(store: Path, tmp_path: Path, at_once: int) -> None:
    states = small_states()
    parts = SPEC.model_copy(update={"micro_sequences": at_once})
    assert run_whole(states, tmp_path / "parts", spec=parts) == run_whole(states, tmp_path / "whole")


def test_the_number_of_threads_changes_nothing(store: Path, tmp_path: Path) -> None:
    states = small_states()
    assert run_whole(states, tmp_path / "one", threads=1) == run_whole(states, tmp_path / "three", threads=3)


def test_kill_9_loses_nothing(store: Path, tmp_path: Path) -> None:
    """A real process, killed while it trains, and another that goes on."""
    states = small_states()
    folder = tmp_path / "killed"
    folder.mkdir()
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tasks.artifacts.artifact import Shards\n"
        "from tasks.train.loop import Training\n"
        "from tests.train.states import small_training\n"
        "original = Training._step\n"
        "def slow(self, *rest):\n"
        "    original(self, *rest)\n"
        "    time.sleep(0.02)\n"
        "Training._step = slow\n"
        "states = [Shards.model_validate_json(text) for text in sys.argv[2:]]\n"
        "small_training(states)[0].run(Path(sys.argv[1]), 2)\n"
    )
    arguments = [str(folder), *(artifact.model_dump_json() for artifact in states)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(store / "results")},
        cwd=Path(__file__).parents[2],
    )
    while not list(folder.glob("checkpoint-*")):
        assert process.poll() is None, "the process ended before its first checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    training, draft = small_training(states)
    training.run(folder, 1)
    assert training.clock.steps < training.steps
    assert result(training, draft) == run_whole(states, tmp_path / "whole")


def test_a_damaged_checkpoint_is_passed_over(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = small_states()
    folder = tmp_path / "killed"
    folder.mkdir()
    run_until(small_training(states)[0], folder, 14, monkeypatch)
    newest = sorted(folder.glob("checkpoint-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    training, draft = small_training(states)
    training.run(folder, 1)
    assert training.clock.steps == training.steps - 8
    assert result(training, draft) == run_whole(states, tmp_path / "whole")


def test_a_flipped_bit_in_a_checkpoint_is_noticed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Safetensors itself would read it: only the checksum tells."""
    states = small_states()
    run_until(small_training(states)[0], tmp_path, 14, monkeypatch)
    newest = sorted(tmp_path.glob("checkpoint-*"))[-1]
    content = bytearray(newest.read_bytes())
    content[-40] ^= 1
    newest.write_bytes(content)
    with caplog.at_level("WARNING", "eyas.train"):
        found = Checkpoints(tmp_path).newest()
    assert found is not None
    assert found.step == 8
    assert newest.name in caplog.text
    assert "checksum" in caplog.text


def test_the_best_weights_come_out(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation after step 10 is made the best of all; what comes out are the weights of that moment."""
    states, lengths = small_states(), iter([1.0, 1.2, 1.5, 1.4, 1.5, 1.3])
    seen: list[bytes] = []

    def measure(self: HeldOut, draft: Eagle3Draft, *rest: object) -> SimulatedAcceptance:
        seen.append(draft.fc.weight.detach().numpy().tobytes())
        length = next(lengths) - 1
        return SimulatedAcceptance([int(length * 1000)], [1000])

    monkeypatch.setattr(HeldOut, "measure", measure)
    training, draft = small_training(states, SPEC.model_copy(update={"keep": "best"}))
    training.run(tmp_path, 1)
    assert len(set(seen)) == 6
    assert draft.fc.weight.detach().numpy().tobytes() == seen[2]


def test_patience_ends_a_run(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter([1.0, 1.5, 1.4, 1.5, 1.3, 1.2])
    monkeypatch.setattr(HeldOut, "measure", lambda *_: SimulatedAcceptance([int((next(lengths) - 1) * 1000)], [1000]))
    training, _ = small_training(small_states(), SPEC.model_copy(update={"patience": 2}))
    training.run(tmp_path, 1)
    assert (training.done, training.steps) == (15, 24)  # evaluated after 0, 5 (the best), 10 and 15


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (3, 6, 9, 12):
        checkpoints.save(Checkpoint(step, {"x": torch.full((2,), float(step))}, {"curve": [step]}))
    checkpoints.wait()
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-00000009.safetensors",
        "checkpoint-00000012.safetensors",
    ]
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    assert (newest.step, newest.notes) == (12, {"curve": [12]})
    assert newest.tensors["x"].tolist() == [12.0, 12.0]


def test_the_curve_has_losses_rates_and_simulated_acceptance(store: Path, tmp_path: Path) -> None:
    training, _ = small_training(small_states())
    training.run(tmp_path, 1)
    assert training.steps == 24
    points = {(point.step, point.kind, point.position) for point in training.curve}
    recorded = [*range(RECORD_EVERY, 24, RECORD_EVERY), 24]
    assert {step for step, kind, _ in points if kind == "loss"} == set(recorded)
    assert {step for step, kind, _ in points if kind == "learning_rate"} == set(recorded)
    assert {step for step, kind, _ in points if kind == "simulated_length"} == {0, 5, 10, 15, 20, 24}
    assert {position for _, kind, position in points if kind == "simulated_acceptance"} == {0, 1, 2}
    assert len(points) == len(training.curve)


def test_training_learns_its_corpus(store: Path, tmp_path: Path) -> None:
    training, _ = small_training(small_states(), SPEC.model_copy(update={"epochs": 30, "learning_rate": 1e-2}))
    training.run(tmp_path, 1)
    losses = [point.value for point in training.curve if point.kind == "loss" and point.position == 0]
    assert losses[-1] < losses[0] - 0.5


def test_a_frozen_head_stays_as_it_is(store: Path, tmp_path: Path) -> None:
    training, draft = small_training(small_states(), SPEC.model_copy(update={"train_head": False, "epochs": 1}))
    head, fc = draft.lm_head.weight.clone(), draft.fc.weight.clone()
    training.run(tmp_path, 1)
    assert torch.equal(draft.lm_head.weight, head)
    assert not torch.equal(draft.fc.weight, fc)


def test_a_diverged_run_stops_with_its_step(store: Path, tmp_path: Path) -> None:
    training, draft = small_training(small_states())
    with torch.no_grad():
        draft.fc.weight.fill_(float("nan"))
    with pytest.raises(DraftError, match=r"step 0 .*loss of sequence 0{30}.., .*learning_rate"):
        training.run(tmp_path, 1)


def test_states_that_are_not_finite_are_named_with_their_positions(store: Path, tmp_path: Path) -> None:
    training, draft = small_training(small_states())
    before = draft.fc.weight.clone()
    broken = training._store.read(5)
    broken.aux[4, 7] = float("nan")
    broken.last[2:4] = float("inf")
    read = training._store.read
    training._store = cast(SequenceSource, _Replaced(training._store, broken, read))
    with pytest.raises(DraftError) as error:
        training.run(tmp_path, 1)
    positions = f"{broken.last_from + 2}, {broken.last_from + 3}"
    assert f"{broken.name}: auxiliary states of positions 4 and last states of positions {positions}" in str(
        error.value
    )
    assert draft.fc.weight.isfinite().all()
    assert before.isfinite().all()


class _Replaced:
    """A source in which one sequence is another."""

    def __init__(self, source: SequenceSource, other: Sequence, read: Callable[[int], Sequence]) -> None:
        self._source, self._other, self._read = source, other, read

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> Sequence:
        found = self._read(index)
        return self._other if found.name == self._other.name else found


def test_states_of_a_target_of_another_width_are_refused(store: Path) -> None:
    sequences = [random_sequence(3, 6, seed=n, hidden=20) for n in range(8)]
    with pytest.raises(DraftError, match="20 wide"):
        small_training([stored_states(sequences, "other")])


def test_the_learning_rate_rises_stays_and_falls() -> None:
    spec = TrainingSpec(learning_rate=1e-3, warmup_steps=10, decay_share=0.5)
    rates = [learning_rate(step, 100, spec) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9:51] == pytest.approx([1e-3] * 42)
    assert rates[75] == pytest.approx(5e-4)
    assert rates[99] == pytest.approx(2e-5)
    half = spec.model_copy(update={"schedule": "wsd", "floor": 0.1})
    rates = [learning_rate(step, 100, half) for step in range(100)]
    assert rates[9:51] == pytest.approx([1e-3] * 42)
    assert rates[75] == pytest.approx(1e-3 * (0.1 + 0.9 * (1 - 0.5**0.5)))
    assert 1e-4 < rates[99] < 2e-4
    cosine = spec.model_copy(update={"schedule": "cosine"})
    rates = [learning_rate(step, 110, cosine) for step in range(110)]
    assert rates[:10] == pytest.approx([1e-4 * (step + 1) for step in range(10)])
    assert (rates[10], rates[60]) == (pytest.approx(1e-3), pytest.approx(5e-4))
    assert sorted(rates[10:], reverse=True) == rates[10:]
    flat = TrainingSpec(learning_rate=1e-3, warmup_steps=0, decay_share=0)
    assert {learning_rate(step, 100, flat) for step in range(100)} == {1e-3}
