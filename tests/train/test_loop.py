"""Training ends with the same weights whatever the threads and the kills, and it learns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from schemas.errors import DraftError
from schemas.sections import TrainingSpec
from tasks.train.checkpoints import Checkpoint, Checkpoints
from tasks.train.loop import RECORD_EVERY, Training
from tasks.train.optimiser import learning_rate
from tests.train.states import SPEC, result, run_whole, small_states, small_training


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


@pytest.mark.parametrize("stops", [[0], [3], [4], [9], [13, 21], [5, 6, 23]])
def test_a_killed_run_ends_like_an_undisturbed_one(
    store: Path, tmp_path: Path, stops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = small_states()
    whole = run_whole(states, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    for stop in stops:
        run_until(small_training(states)[0], folder, stop, monkeypatch)
    training, draft = small_training(states)
    training.run(folder, 1)
    assert result(training, draft) == whole
    if stops[-1] > SPEC.checkpoint_every:
        assert training.clock.steps < training.steps


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
    with pytest.raises(DraftError, match=r"step 0 .*learning_rate"):
        training.run(tmp_path, 1)


def test_the_learning_rate_rises_stays_and_falls() -> None:
    spec = TrainingSpec(learning_rate=1e-3, warmup_steps=10, decay_share=0.5)
    rates = [learning_rate(step, 100, spec) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9:51] == pytest.approx([1e-3] * 42)
    assert rates[75] == pytest.approx(5e-4)
    assert rates[99] == pytest.approx(2e-5)
    flat = TrainingSpec(learning_rate=1e-3, warmup_steps=0, decay_share=0)
    assert {learning_rate(step, 100, flat) for step in range(100)} == {1e-3}
