"""The folder that a prepared target is loaded from, with every file checked against the artifact."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import ArtifactInvalid, TargetError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.files import verify_file
from tasks.artifacts.store import store_root
from tasks.target.source import source_folder


def target_folder(target: Shards, spec: TargetSpec) -> Path:
    """The Hugging Face folder of a target artifact; its files are hashed once per process.

    Raises:
        ArtifactInvalid: a converted file in the store is missing or altered.
        TargetError: a file of a local or downloaded folder is missing or was changed after it was prepared.
    """
    if target.shards:
        target.verify(store_root(), "sha256")
        return target.shards[0].locate().parent
    folder = source_folder(spec, target.facts["revision"])
    for name, sha256 in target.facts["files"].items():
        path = folder / name
        try:
            verify_file(path, path.stat().st_size, sha256, "sha256")
        except (OSError, ArtifactInvalid) as exc:
            raise TargetError(f"the target's file {path} changed since it was prepared: {exc}. Start again") from exc
    return folder
