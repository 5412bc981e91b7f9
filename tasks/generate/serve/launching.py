"""The servers of a recipe: those that it names, which run already, or one with the target that is started for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from schemas.generation import GenerationSpec
from schemas.sections import TargetSpec
from schemas.serving import EndpointSpec, LaunchSpec, ServingSpec
from tasks.artifacts.artifact import Shards
from tasks.engines.launch import launched
from tasks.generate.serve.stopping import stoppable_wait
from tasks.target.place import target_folder


@dataclass(frozen=True)
class Asking:
    """Where to ask, and of what revision the answers are; `check` raises ServerEnded if a server of ours has ended."""

    serving: ServingSpec
    revision: str
    check: Callable[[], None]


@contextmanager
def servers_of(spec: GenerationSpec, target: Shards, target_spec: TargetSpec) -> Iterator[Asking]:
    """The servers, for as long as the block runs.

    Raises:
        EngineError: a server cannot be started.
        ServerEnded: it ended in the block, which failed for that reason.
        RunStopped: while it started.
    """
    if spec.launch is None:
        yield Asking(spec.serving, target_spec.revision, lambda: None)
        return
    code = ["--trust-remote-code"] if target_spec.trust_remote_code else []
    launch = spec.launch.model_copy(update={"flags": [*code, *spec.launch.flags]})
    name = target.facts["model"]
    folder = target_folder(target, target_spec)
    with ExitStack() as running:
        with stoppable_wait() as is_stopped:
            one = running.enter_context(launched(launch, folder, name, is_stopped))
        serving = spec.serving.model_copy(update={"endpoints": [EndpointSpec(url=one.url)], "model": name})
        yield Asking(serving, _revision(target.facts, launch), one.check)


def _revision(facts: Mapping[str, Any], launch: LaunchSpec) -> str:
    """Names the weights as they are served: answers that are paid for are found again under it."""
    files = "".join(f"{name} {sha256} " for name, sha256 in sorted(facts["files"].items()))
    content = hashlib.sha256(files.encode()).hexdigest()[:16] if files else facts["revision"]
    return " ".join(filter(None, (content, launch.dtype, launch.quantization)))
