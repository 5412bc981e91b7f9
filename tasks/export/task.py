"""The task that exports a draft in SGLang's layout, bf16. The layout itself is tasks/draft/checkpoint.py."""

from __future__ import annotations

import torch

from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_checkpoint, load_draft, write_checkpoint

_BF16_BYTES = 2


@artifact_task(version="1")
def export_draft(draft: Shards) -> Shards:
    """Parts "config" and "weights": config.json and model.safetensors, bf16, read back once to be sure.

    Raises:
        DraftError: a weight is not finite in bf16, or the files do not read back.
        StoreError: the files would not fit on the disk.
    """
    given = load_draft(draft)
    weights = sum(parameter.numel() for parameter in given.parameters())
    require_space(weights * _BF16_BYTES, "exporting the draft")
    space = workspace()
    folder = space.ensure_folder()
    write_checkpoint(folder, given, torch.bfloat16)
    exported = load_checkpoint(folder)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    parameters = sum(parameter.numel() for parameter in exported.parameters())
    return space.publish({"parameters": parameters, "layout": "sglang", "dtype": "bfloat16"})
