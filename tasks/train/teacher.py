"""What training takes from the target: the device it computes on, its embeddings and its head."""

from __future__ import annotations

from typing import Any

import torch

from schemas.sections import TargetSpec
from tasks.target.model import Target
from tasks.train.sequence import TeacherParts


def training_device(spec: TargetSpec) -> torch.device:
    """Where the draft is trained: the target's device, and for `auto` the first GPU if there is one."""
    if spec.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(spec.device)


@torch.no_grad()
def teacher_parts(target: Target, device: torch.device) -> TeacherParts:
    """The target's embeddings, as its layers read them, and its head, in float32."""
    head: Any = target.model.get_output_embeddings()
    ids = torch.arange(target.facts["vocab_size"], device=target.device)
    return TeacherParts(target.embed(ids).to(device, torch.float32), head.weight.detach().to(device, torch.float32))
