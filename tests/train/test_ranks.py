"""Two processes that torchrun starts train what one process trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.sections import TrainingSpec
from tasks.artifacts.artifact import Shards
from tests.train.states import SPEC, small_states, small_training

ROOT = Path(__file__).parents[2]


def together(states: list[Shards], folder: Path, store: Path, spec: TrainingSpec) -> list[dict[str, Any]]:
    """What each of two gloo processes ended with."""
    folder.mkdir(exist_ok=True)
    request = {"states": [one.model_dump(mode="json") for one in states], "spec": spec.model_dump(mode="json")}
    (folder / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, "-m", "tests.train.rank", str(folder)],
        env=os.environ | {"PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(store / "results"), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"batch_sequences": 1, "loss": "lk_lambda", "keep": "best", "micro_sequences": 1}],
    ids=["two and one sequence each", "a rank with nothing to do"],
)
def test_two_processes_train_what_one_trains(store: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    states, spec = small_states(), SPEC.model_copy(update={"epochs": 2, **changes})
    alone, draft = small_training(states, spec)
    (tmp_path / "alone").mkdir()
    alone.run(tmp_path / "alone", 1)
    first, second = together(states, tmp_path / "together", store, spec)

    assert first["weights"] == second["weights"]  # bit for bit
    assert first["curve"] == second["curve"]
    assert [point[:3] for point in first["curve"]] == [[p.step, p.kind, p.position] for p in alone.curve]
    torch.testing.assert_close(
        torch.tensor([point[3] for point in first["curve"]]),
        torch.tensor([point.value for point in alone.curve]),
        rtol=1e-4,
        atol=1e-4,
    )
    for name, tensor in draft.state_dict().items():
        torch.testing.assert_close(
            torch.tensor(first["weights"][name], dtype=tensor.dtype), tensor, rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
def test_two_processes_go_on_from_the_checkpoint_of_one(store: Path, tmp_path: Path) -> None:
    states = small_states()
    alone, _ = small_training(states)
    alone.run(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*"))[-1] == "checkpoint-00000020.safetensors"
    first, second = together(states, tmp_path, store, SPEC)
    assert (first["made"], second["made"]) == (4, 4)
    assert first["weights"] == second["weights"]
    assert first["curve"][-1][3] == pytest.approx(alone.curve[-1].value, abs=1e-3)
