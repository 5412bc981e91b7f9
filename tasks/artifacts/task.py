"""The artifact task: a Prefect task whose run is Completed only when its Parquet result is on disk.

Prefect 3.9 reports Completed before it writes a result, and only logs a failed write; so the result is persisted inside
the task body, and Prefect's own write is switched off.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import platform
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from prefect import Task
from prefect import task as prefect_task
from prefect.context import FlowRunContext
from prefect.results import get_result_store
from prefect.transactions import IsolationLevel, Transaction, get_transaction

from schemas.benchmarking import BenchmarkRecipe
from schemas.errors import ArtifactInvalid, StoreError
from schemas.recipe import Recipe
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.files import VerifyLevel
from tasks.artifacts.index import ArtifactIndex, load_verified
from tasks.artifacts.keys import ContentKey, canonical
from tasks.artifacts.locks import FlockManager
from tasks.artifacts.redaction import redacted
from tasks.artifacts.serializer import ParquetSerializer
from tasks.artifacts.store import code_version
from tasks.artifacts.workspace import Workspace, working_in, workspace

__all__ = ["artifact_task", "peek", "workspace"]

Result = TypeVar("Result", bound=Artifact)


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
            folder = Workspace(cast(str, transaction.key))
            started = time.perf_counter()
            try:
                with working_in(folder):
                    result = cast(Result, folder.recover()) or function(*args, **kwargs)
                if not isinstance(result, Artifact):
                    raise ArtifactInvalid(f"task {function.__name__} returned {type(result).__name__}, not an artifact")
                result.to_table()  # meets its contract, or the error says so
            except Exception as exc:
                if (clean := redacted(exc)) is exc:
                    raise
                raise clean from None
            inputs = {k: v for k, v in _bind(function, args, kwargs).items() if k not in policy.exclude}
            result = _with_lineage(result, transaction, version, inputs, time.perf_counter() - started)
            store = get_result_store()
            record = store.create_result_record(result, key=transaction.key)
            store.persist_result_record(record, holder=transaction._holder)  # noqa: SLF001 (pinned Prefect)
            transaction.write_on_commit = False
            folder.tidy()
            return result

        return prefect_task(
            cache_policy=policy,
            result_serializer=ParquetSerializer(),
            cache_result_in_memory=False,
            persist_result=True,
            **options,
        )(body)

    return decorate


def peek(task: Task[..., Result], **inputs: Any) -> Result | None:
    """The stored result of a task call with these inputs, or None if the call would run; runs nothing."""
    policy = cast(ContentKey, task.cache_policy)
    try:
        _, artifact = load_verified(policy.key_for(task.name, _bind(task.fn, (), inputs)), "size")
    except (FileNotFoundError, ArtifactInvalid):
        return None
    return None if artifact.provisional else cast(Result, artifact)


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
    return recipe.fingerprint() if isinstance(recipe, Recipe | BenchmarkRecipe) else None
