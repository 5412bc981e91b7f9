"""The artifact task: a Prefect task whose run is Completed only when its Parquet result is on disk.

Prefect 3.9 reports Completed before it writes a result, and only logs a failed write; so the result is persisted inside
the task body, and Prefect's own write is switched off.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import hashlib
import inspect
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from prefect import Task
from prefect import task as prefect_task
from prefect.context import FlowRunContext
from prefect.results import get_result_store
from prefect.transactions import IsolationLevel, Transaction, get_transaction

from schemas.contract import Contract
from schemas.errors import ArtifactInvalid, StoreError
from tasks.artifacts.artifact import FILE, Artifact, Shard, Shards
from tasks.artifacts.files import VerifyLevel, sha256_file, sync_folder, write_table
from tasks.artifacts.index import ArtifactIndex, load_verified
from tasks.artifacts.keys import ContentKey, canonical
from tasks.artifacts.locks import FlockManager
from tasks.artifacts.redaction import redacted
from tasks.artifacts.serializer import ParquetSerializer
from tasks.artifacts.store import code_version, store_root

Result = TypeVar("Result", bound=Artifact)

_workspace: contextvars.ContextVar[Workspace] = contextvars.ContextVar("eyas_workspace")


class Workspace:
    """The folder of a running artifact task: `<store>/data/<task>/<key>.part` until `publish`, then without `.part`.

    What an earlier, killed attempt of the same task left there is still there, so that a long task can go on.
    """

    def __init__(self, key: str) -> None:
        self.final = store_root() / "data" / key.removesuffix(".parquet")
        self.folder = self.final.with_name(self.final.name + ".part")
        self._files: list[tuple[str, str, Path, int]] = []

    def path(self, name: str) -> Path:
        """A path inside the folder, which is created."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def add_table(self, part: str, name: str, table: pa.Table, contract: Contract, **options: Any) -> None:
        """Write a table of the result atomically and list it."""
        path = self.path(name)
        write_table(path, table, contract, **options)
        self._files.append((part, contract.name, path, table.num_rows))

    def add_existing_table(self, part: str, name: str, contract: Contract) -> None:
        """List a table that an earlier attempt or another process wrote whole."""
        path = self.path(name)
        self._files.append((part, contract.name, path, pq.read_metadata(path).num_rows))

    def add_file(self, part: str, name: str) -> None:
        """List a file of the result that was written (atomically) at `path(name)`."""
        self._files.append((part, FILE, self.path(name), 0))

    def publish(self, facts: dict[str, Any] | None = None, measures: dict[str, float] | None = None) -> Shards:
        """Move the listed files to their final place, drop the rest, and return the manifest."""
        root = store_root()
        shards = tuple(
            Shard(
                part=part,
                contract=contract,
                path=str((self.final / path.relative_to(self.folder)).relative_to(root)),
                sha256=sha256_file(path),
                rows=rows,
                bytes=path.stat().st_size,
            )
            for part, contract, path, rows in self._files
        )
        listed = {path for _, _, path, _ in self._files}
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path not in listed and path.is_file():
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if self.final.exists():
            shutil.rmtree(self.final)
        self.folder.rename(self.final)
        sync_folder(self.final.parent)
        return Shards(shards=shards, facts=facts or {}, measures=measures or {})


def workspace() -> Workspace:
    """The folder of the artifact task that is running.

    Raises:
        StoreError: no artifact task is running.
    """
    try:
        return _workspace.get()
    except LookupError:
        raise StoreError("workspace() was called outside an artifact task") from None


def artifact_task(
    *, version: str, exclude: Iterable[str] = (), verify: VerifyLevel = "sha256", **options: Any
) -> Callable[[Callable[..., Result]], Task[..., Result]]:
    """Make a Prefect task of a function that returns an artifact.

    Args:
        version: version of the task's code; part of the cache key, so raise it when results would differ.
        exclude: parameters that do not change the result (threads, batch hints).
        verify: how thoroughly a hit's shards are checked.
        options: anything else that `prefect.task` takes.
    """

    def decorate(function: Callable[..., Result]) -> Task[..., Result]:
        policy = cast(
            ContentKey,
            ContentKey(version, exclude).configure(
                key_storage=ArtifactIndex(level=verify),
                lock_manager=FlockManager(),
                isolation_level=IsolationLevel.SERIALIZABLE,
            ),
        )

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Result:
            transaction = _keyed_transaction(function.__name__)
            token = _workspace.set(Workspace(cast(str, transaction.key)))
            started = time.perf_counter()
            try:
                result = function(*args, **kwargs)
            except Exception as exc:
                if (clean := redacted(exc)) is exc:
                    raise
                raise clean from None
            finally:
                _workspace.reset(token)
            if not isinstance(result, Artifact):
                raise ArtifactInvalid(f"task {function.__name__} returned {type(result).__name__}, not an artifact")
            inputs = {k: v for k, v in _bind(function, args, kwargs).items() if k not in policy.exclude}
            result = _with_lineage(result, transaction, version, inputs, time.perf_counter() - started)
            store = get_result_store()
            record = store.create_result_record(result, key=transaction.key)
            store.persist_result_record(record, holder=transaction._holder)  # noqa: SLF001 (pinned Prefect)
            transaction.write_on_commit = False
            return result

        return prefect_task(
            body,
            cache_policy=policy,
            result_serializer=ParquetSerializer(),
            cache_result_in_memory=False,
            persist_result=True,
            **options,
        )

    return decorate


def peek(task: Task[..., Result], **inputs: Any) -> Result | None:
    """The stored result of a task call with these inputs, or None; runs nothing."""
    policy = cast(ContentKey, task.cache_policy)
    try:
        _, artifact = load_verified(policy.key_for(task.name, inputs), "size")
    except (FileNotFoundError, ArtifactInvalid):
        return None
    return cast(Result, artifact)


def _keyed_transaction(name: str) -> Transaction:
    transaction = get_transaction()
    if not isinstance(transaction, Transaction) or not transaction.key:
        raise StoreError(
            f"task {name} has no cache key (an input has no content identity?) and would not be persisted; not run"
        )
    return transaction


def _bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _with_lineage(
    result: Result, transaction: Transaction, version: str, inputs: dict[str, Any], seconds: float
) -> Result:
    """The result with where it came from: key, task version, inputs by digest, recipe fingerprint, time and host."""
    lineage = {
        "key": transaction.key,
        "task_version": version,
        "eyas": code_version(),
        "inputs": {name: json.loads(canonical(value)) for name, value in inputs.items()},
        "recipe": _recipe_fingerprint(),
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "seconds": round(seconds, 3),
    }
    return result.model_copy(update={"lineage": lineage})


def _recipe_fingerprint() -> str | None:
    context = FlowRunContext.get()
    recipe = (context.parameters or {}).get("recipe") if context else None
    return None if recipe is None else hashlib.sha256(canonical(recipe)).hexdigest()
