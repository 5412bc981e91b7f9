"""Training checkpoints: everything that a killed run needs to go on and end with the same weights, bit for bit.

Written by a background thread while training goes on; a file is whole or absent, and carries a SHA-256 of all that it
holds, so that a flipped bit is noticed. The two newest are kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tasks.artifacts.files import atomic_file

log = logging.getLogger("eyas.train")

_NAME = re.compile(r"^checkpoint-(\d+)\.safetensors$")
_KEPT = 2
COPIES_ON_DISK = _KEPT + 1  # the newest is whole before the oldest goes


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` optimiser steps."""

    step: int
    tensors: dict[str, Tensor]
    notes: dict[str, Any]  # JSON: the curve so far


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that reads well; a damaged one is reported and passed over."""
        for path in reversed(self._files()):
            try:
                with safe_open(path, "pt") as file:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                    metadata = file.metadata()
                if _checksum(tensors, metadata["state"]) != metadata["sha256"]:
                    raise ValueError("its content does not have its checksum")
                head = json.loads(metadata["state"])
                return Checkpoint(head["step"], tensors, head["notes"])
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as exc:
                log.warning("the checkpoint %s cannot be read, an older one is used: %s", path, exc)
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Begin to write; waits for the one before. The tensors must not change any more.

        Raises:
            OSError: the checkpoint before could not be written.
        """
        self.wait()
        self._writing = self._writer.submit(self._write, checkpoint)

    def wait(self) -> None:
        """Wait until all is on disk.

        Raises:
            OSError: it could not be written.
        """
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """End the writing thread."""
        self._writer.shutdown()

    def _write(self, checkpoint: Checkpoint) -> None:
        head = json.dumps({"step": checkpoint.step, "notes": checkpoint.notes})
        path = self._folder / f"checkpoint-{checkpoint.step:08d}.safetensors"
        with atomic_file(path) as handle:
            handle.write(save(checkpoint.tensors, {"state": head, "sha256": _checksum(checkpoint.tensors, head)}))
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("checkpoint-*.safetensors") if _NAME.match(path.name))


def _checksum(tensors: dict[str, Tensor], head: str) -> str:
    """Hex SHA-256 of the head and of every tensor's name, type, shape and bytes."""
    hasher = hashlib.sha256(head.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        hasher.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        hasher.update(cast(bytes, tensor.reshape(-1).view(torch.uint8).numpy()))  # without a copy
    return hasher.hexdigest()
