"""The index of the store, which Prefect reads as its key storage to decide whether a cached result exists.

Reading a record verifies the result file and every shard; Prefect takes any exception here for "no such record" and
runs the task again. A record can therefore never make Prefect load anything but our own Parquet.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
from pathlib import Path
from typing import Any

from prefect.context import TaskRunContext
from prefect.filesystems import LocalFileSystem

from schemas.errors import ArtifactInvalid
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.files import VerifyLevel, sha256_file, verify_file, write_bytes
from tasks.artifacts.serializer import SERIALIZER_TYPE, ParquetSerializer
from tasks.artifacts.store import store_root

log = logging.getLogger("eyas.artifacts")


def record_path(key: str) -> Path:
    """Where the commit record of a key is."""
    return store_root() / "index" / f"{key}.json"


def result_path(key: str) -> Path:
    """Where the result of a key is."""
    return store_root() / "results" / key


def load_verified(key: str, level: VerifyLevel) -> tuple[dict[str, Any], Artifact]:
    """The commit record and artifact of a key, after checking the result file and its shards.

    Raises:
        FileNotFoundError: there is no record.
        ArtifactInvalid: the record is forged or damaged, or a file is missing or altered.
    """
    raw = record_path(key).read_bytes()
    try:
        record = json.loads(raw)
        serializer, stored = record["serializer"], record["artifact"]
        size, sha256 = stored["bytes"], stored["sha256"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ArtifactInvalid(f"the index record of {key} is damaged: {exc!r}") from exc
    if serializer != {"type": SERIALIZER_TYPE}:
        raise ArtifactInvalid(f"the index record of {key} names the serializer {serializer}: only Parquet is read")
    path = result_path(key)
    verify_file(path, size, sha256, "sha256")
    artifact = ParquetSerializer().loads(path.read_bytes())
    if not isinstance(artifact, Artifact):
        raise ArtifactInvalid(f"{path} holds a failure, not a result")
    artifact.verify(store_root(), level)
    return record, artifact


class ArtifactIndex(LocalFileSystem):
    """Commit records as JSON files; `level` says how thoroughly shards are verified at a hit."""

    _block_type_name = "eyas artifact index"
    _block_type_slug = "eyas-artifact-index"
    level: VerifyLevel = "sha256"

    def read_path(self, path: str, _sync: bool = True) -> bytes:
        try:
            record, artifact = load_verified(path, self.level)
        except FileNotFoundError:
            raise
        except ArtifactInvalid as exc:
            log.warning("cached result %s cannot be used and is made again: %s", path, exc)
            raise
        if artifact.provisional:
            raise ArtifactInvalid(f"the result of {path} is provisional: its task is done again")
        with contextlib.suppress(OSError):
            os.utime(record_path(path))  # last used: what `prune` goes by
        record["storage_key"] = str(result_path(path))
        return json.dumps(record).encode()

    async def aread_path(self, path: str) -> bytes:
        return self.read_path(path)

    def write_path(self, path: str, content: bytes, _sync: bool = True) -> str:
        result = result_path(path)
        record = json.loads(content)
        if record["storage_key"] != str(result):
            raise ArtifactInvalid(
                f"Prefect stored the result at {record['storage_key']}, the index expects {result}: "
                "do not set result_storage on an artifact task"
            )
        record["storage_key"] = path
        record["artifact"] = {"bytes": result.stat().st_size, "sha256": sha256_file(result), **_provenance()}
        write_bytes(record_path(path), json.dumps(record, indent=1, default=str).encode())
        return str(record_path(path))

    async def awrite_path(self, path: str, content: bytes) -> str:
        return self.write_path(path, content)


def _provenance() -> dict[str, str]:
    context = TaskRunContext.get()
    if context is None:
        return {}
    return {
        "task": context.task.task_key,
        "task_run_id": str(context.task_run.id),
        "flow_run_id": str(context.task_run.flow_run_id),
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(),
    }
