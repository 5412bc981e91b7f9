"""One of the processes that train together; tests/train/test_ranks.py starts it with torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from schemas.sections import TrainingSpec
from tasks.artifacts.artifact import Shards
from tasks.train.ranks import Ranks, joined
from tests.train.states import small_training


def main() -> None:
    """Train, and let each rank write its weights and its curve."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    with joined(torch.device("cpu")):
        states = [Shards.model_validate(one) for one in request["states"]]
        training, draft = small_training(states, TrainingSpec.model_validate(request["spec"]))
        training.run(folder, 1)
        curve = [[point.step, point.kind, point.position, point.value] for point in training.curve]
        weights = {name: tensor.tolist() for name, tensor in draft.state_dict().items()}
        out = {"curve": curve, "weights": weights, "made": training.clock.steps}
        (folder / f"rank-{Ranks.current().rank}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main()
