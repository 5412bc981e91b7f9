"""Submits the tasks of a flow run and remembers, step by step, what they returned and whether it was cached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from prefect import Task
from prefect.futures import PrefectFuture

from tasks.artifacts.artifact import Artifact
from tasks.generate.serve.stopping import request_stop

_CLOSE_SECONDS = 10  # for journals to be closed

R = TypeVar("R", bound=Artifact)


@dataclass(frozen=True)
class Done:
    """One finished task run; the first word of its label is the step."""

    label: str
    artifact: Artifact
    cached: bool


@dataclass
class Steps:
    """The task runs of one flow run, in the order of submission; each is tagged with its step and the recipe's name."""

    recipe: str
    _submitted: list[tuple[str, PrefectFuture[Any]]] = field(default_factory=list)

    def submit(self, task: Task[..., R], label: str, **inputs: Any) -> PrefectFuture[R]:
        """Start a task as soon as its inputs are there; `label` is the task run's name in the UI."""
        future = task.with_options(task_run_name=label, tags=[label.split(maxsplit=1)[0], self.recipe]).submit(**inputs)
        self._submitted.append((label, future))
        return future

    def finished(self) -> list[Done]:
        """Wait for all and return them; raises the first failure."""
        return [Done(label, future.result(), future.state.name == "Cached") for label, future in self._submitted]


def in_order(asking: PrefectFuture[R], grace_seconds: float) -> R:
    """The result of a task that asks servers; if the flow run is cancelled, what is in flight gets its time first."""
    try:
        return asking.result()
    except BaseException:
        if request_stop():  # its task would ask on, and what is in flight is paid for
            asking.wait(grace_seconds + _CLOSE_SECONDS)
        raise
