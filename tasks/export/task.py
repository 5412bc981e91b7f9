"""The tasks that export a draft in bf16: in the layout that SGLang and vLLM both read, and from it in other layouts.

Names and shapes are tasks/draft/checkpoint.py, what engines make of them tasks/draft/engines.py.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from schemas.sections import ExportSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import write_bytes
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.checkpoint import (
    CONFIG,
    WEIGHTS,
    load_checkpoint,
    load_draft,
    tensors_of,
    write_checkpoint,
    write_tensors,
)
from tasks.draft.config import DraftConfig
from tasks.draft.engines import require_engines
from tasks.draft.record import RECORD, DraftRecord
from tasks.export.layouts import layout_config, layout_tensors

_BF16_BYTES = 2


@artifact_task(version="2")
def export_draft(draft: Shards, target: Shards, spec: ExportSpec) -> Shards:
    """Parts "config", "weights" and "record": config.json, model.safetensors (bf16) and eyas.json, read back once.

    Raises:
        DraftError: an engine would misread the draft, a weight is not finite in bf16, or the files do not read back.
        StoreError: the files would not fit on the disk.
    """
    given = load_draft(draft)
    require_engines(given.config, spec.engines)
    weights = sum(parameter.numel() for parameter in given.parameters())
    require_space(weights * _BF16_BYTES, "exporting the draft")
    space = workspace()
    folder = space.ensure_folder()
    write_checkpoint(folder, given, torch.bfloat16)
    write_bytes(folder / RECORD, record_of(given.config, draft, target).to_bytes())
    exported = load_checkpoint(folder)
    for part, name in (("config", CONFIG), ("weights", WEIGHTS), ("record", RECORD)):
        space.add_file(part, name)
    parameters = sum(parameter.numel() for parameter in exported.parameters())
    return space.publish({"parameters": parameters, "layout": "sglang", "dtype": "bfloat16"})


@artifact_task(version="1")
def export_layout(exported: Shards, target: Shards, layout: str) -> Shards:
    """An exported draft in another layout, "vllm" or "speculators": parts "config" and "weights", the same values.

    Raises:
        StoreError: the files would not fit on the disk.
    """
    draft = load_draft(exported)
    require_space(exported.part("weights")[0].bytes, f"exporting the draft in the layout {layout}")
    tensors = layout_tensors(draft.config, tensors_of(draft, torch.bfloat16))
    space = workspace()
    write_tensors(space.ensure_folder(), layout_config(draft.config, layout, target.facts), tensors, torch.bfloat16)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    return space.publish({"layout": layout, "dtype": "bfloat16"})


def record_of(config: DraftConfig, draft: Shards, target: Shards) -> DraftRecord:
    """What a draft says of itself: layers, parent, and what it reached on held-out sequences at the end of training."""
    facts: dict[str, Any] = draft.facts
    return DraftRecord(
        target=target.facts.get("model", ""),
        target_revision=target.facts.get("revision", ""),
        aux_layers=config.aux_layers,
        simulated_acceptance=_simulated(draft),
        steps=facts.get("steps", 0),
        parent={"model": facts["parent"]} if facts.get("parent") else {},
    )


def _simulated(draft: Shards) -> list[float]:
    if not draft.part("curve"):
        return list(draft.facts.get("simulated_acceptance", []))
    shares: dict[int, dict[int, float]] = defaultdict(dict)
    for row in draft.table("curve").to_pylist():
        if row["kind"] == "simulated_acceptance":
            shares[row["step"]][row["position"]] = row["value"]
    if not shares:
        return []
    best = (
        max(shares, key=lambda step: sum(shares[step].values())) if draft.facts.get("keep") == "best" else max(shares)
    )
    return [share for _, share in sorted(shares[best].items())]
