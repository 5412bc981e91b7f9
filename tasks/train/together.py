"""One training, in this process or in several that torchrun starts on this machine: `compute.training_processes`.

    python -m torch.distributed.run --nproc-per-node N -m tasks.train.together FOLDER

is what is started; it reads FOLDER/request.json, and its first process leaves the trained draft there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from schemas.errors import DraftError
from schemas.sections import TargetSpec, TrainingSpec
from tasks import keeper
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_bytes
from tasks.artifacts.store import store_root
from tasks.draft.checkpoint import load_checkpoint, load_draft, write_checkpoint
from tasks.draft.model import Eagle3Draft
from tasks.target.model import load_target
from tasks.train.aux_scale import as_columns, fold, unfold
from tasks.train.loop import CurvePoint, Training
from tasks.train.online import open_sequences
from tasks.train.ranks import Ranks, joined
from tasks.train.teacher import teacher_parts, training_device

_REQUEST, _FIGURES = "request.json", "trained.json"
_STOP_SECONDS = 10
_SHOWN = 2000  # last characters of a failed process that a message shows


class Request(BaseModel):
    """What a training run is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Shards
    initial: Shards
    states: list[Shards]
    spec: TrainingSpec
    seed: int
    target_spec: TargetSpec
    threads: int


@dataclass(frozen=True)
class Trained:
    """What came out; the draft reads raw states."""

    draft: Eagle3Draft
    curve: list[CurvePoint]
    done: int
    measures: dict[str, float]


def train(request: Request, folder: Path, device: torch.device) -> Trained:
    """Train in this process, which may be one of several; checkpoints are in `folder`.

    Raises:
        DraftError: the states are of another target, or training diverges.
    """
    draft, scale = load_draft(request.initial), list(request.initial.facts["aux_scale"])
    unfold(draft, scale)
    training = Training(
        draft.to(device),
        teacher_parts(load_target(request.target, request.target_spec), device),
        as_columns(scale, draft).to(device),
        open_sequences(request.states, "train", request.target, request.target_spec),
        open_sequences(request.states, "heldout", request.target, request.target_spec),
        request.spec,
        request.seed,
    )
    training.run(folder, request.threads)
    fold(draft, scale)
    return Trained(draft, training.curve, training.done, training.clock.summary())


def train_together(request: Request, folder: Path, processes: int) -> Trained:
    """Train in several processes of this machine, a GPU each where there are any.

    Raises:
        DraftError: one of them failed; the end of what it said is in the message.
    """
    write_bytes(folder / _REQUEST, request.model_dump_json().encode())
    told = os.open(os.devnull, os.O_WRONLY)
    keep = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(_STOP_SECONDS), str(told)]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    try:
        ended = subprocess.run(
            [*keep, *run, "-m", "tasks.train.together", str(folder)],
            env=os.environ | {"PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(store_root() / "results")},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            pass_fds=[told],
        )
    finally:
        os.close(told)
    if ended.returncode:
        raise DraftError(f"training in {processes} processes failed:\n{ended.stderr[-_SHOWN:]}")
    figures = json.loads((folder / _FIGURES).read_bytes())
    curve = [CurvePoint(**point) for point in figures["curve"]]
    return Trained(load_checkpoint(folder), curve, figures["done"], figures["measures"])


def main() -> None:
    """One of the processes."""
    folder = Path(sys.argv[1])
    request = Request.model_validate_json((folder / _REQUEST).read_bytes())
    with joined(training_device(request.target_spec)) as device:
        trained = train(request, folder, device)
        if Ranks.current().is_first:
            write_checkpoint(folder, trained.draft.cpu(), torch.float32)
            figures: dict[str, Any] = {
                "curve": [asdict(point) for point in trained.curve],
                "done": trained.done,
                "measures": trained.measures,
            }
            write_bytes(folder / _FIGURES, json.dumps(figures).encode())


if __name__ == "__main__":
    main()
