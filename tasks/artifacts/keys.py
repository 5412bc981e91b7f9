"""The cache key: task name, code version of the task, and canonical JSON of its inputs, artifacts by content digest.

Source: prefect.cache_policies (protocol). Neither the run, nor a path, nor pickled bytes are part of a key, so the same
work is found again from another run, process, machine or moved store.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import json
import math
import uuid
from collections.abc import Iterable
from typing import Any

from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tasks.artifacts.artifact import Artifact, SourceFile
from tasks.artifacts.store import LAYOUT


def canonical(value: Any) -> bytes:
    """Canonical JSON bytes of a task input.

    Raises:
        TypeError: the value has no content identity (a path, a set, an open client, ...).
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _plain(value: Any) -> Any:
    match value:
        case Artifact() | SourceFile():
            return {"$artifact": value.kind, "digest": value.digest()}
        case BaseModel():
            named = ((name, field, getattr(value, name)) for name, field in type(value).model_fields.items())
            counted = {name: held for name, field, held in named if _is_identity(field, held)}
            fields = counted | (value.model_extra or {})
            return {"$model": type(value).__name__, "fields": _plain(fields)}
        case enum.Enum():
            return _plain(value.value)
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": repr(value)}
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            if not all(isinstance(key, str) for key in value):
                raise TypeError("a dictionary in a cache key must have text keys")
            return {_escaped(key): _plain(item) for key, item in value.items()}
        case datetime.datetime() | datetime.date() | uuid.UUID():
            return {"$text": str(value)}
    raise TypeError(f"{type(value).__name__} cannot be part of a cache key: pass an artifact, a model or a plain value")


def _escaped(key: str) -> str:
    return "$" + key if key.startswith("$") else key  # so that no dictionary looks like the markers above


def _is_identity(field: FieldInfo, value: Any) -> bool:
    """Whether a field counts: `identity: false` changes how work is cut, not what comes out; `identity: "set"` came
    later than results that are kept, and its default means what was done before there was the field."""
    extra = field.json_schema_extra
    identity = extra.get("identity") if isinstance(extra, dict) else None
    if identity == "set":
        return value != field.get_default(call_default_factory=True)
    return identity is not False


class ContentKey(CachePolicy):
    """`<task>/<first 32 hex digits of a SHA-256>.parquet`, which is also the name of the result file."""

    def __init__(self, version: str, exclude: Iterable[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self.version = version
        self.exclude = frozenset(exclude)

    def key_for(self, task_name: str, inputs: dict[str, Any]) -> str:
        """The key of a task call with these inputs."""
        counted = {name: value for name, value in inputs.items() if name not in self.exclude}
        hasher = hashlib.sha256(f"{LAYOUT}\0{task_name}\0{self.version}\0".encode())
        hasher.update(canonical(counted))
        return f"{task_name}/{hasher.hexdigest()[:32]}.parquet"

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        return self.key_for(task_ctx.task.name, inputs or {})
