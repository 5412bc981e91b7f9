"""Servers that give states, launched when the first task needs one, shared by those of the same target and recipe, and
stopped at the end of the run."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from schemas.extraction import ExtractionSpec
from schemas.sections import TargetSpec
from schemas.serving import LaunchSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import store_root
from tasks.engines.launch import launched
from tasks.states import sglang, vllm
from tasks.states.source import aux_layers
from tasks.target.place import target_folder

_NAME = "states"

_lock = threading.Lock()
_stack = ExitStack()
_urls: dict[tuple[str, str], str] = {}


@contextmanager
def state_servers() -> Iterator[None]:
    """Servers that are launched while the block runs end with it."""
    try:
        yield
    finally:
        stop_state_servers()


def stop_state_servers() -> None:
    """Stop all that were launched; the next task that needs one starts it anew."""
    with _lock:
        _urls.clear()
        _stack.close()


def launched_url(target: Shards, target_spec: TargetSpec, spec: ExtractionSpec) -> str:
    """The server of the recipe's `extraction.launch`, which is started unless it runs already.

    Raises:
        EngineError: it is not installed, or does not start.
    """
    assert spec.launch
    key = (target.digest(), json.dumps([spec.launch.model_dump(), spec.aux_layers]))
    with _lock:
        if key not in _urls:
            exchange = Path(_stack.enter_context(tempfile.TemporaryDirectory(prefix="states-", dir=_exchanges())))
            prepared = prepared_launch(spec, target.facts, exchange)
            _urls[key] = _stack.enter_context(launched(prepared, target_folder(target, target_spec), _NAME)).url
        return _urls[key]


def prepared_launch(spec: ExtractionSpec, facts: dict[str, object], exchange: Path) -> LaunchSpec:
    """The recipe's launch with what makes the engine give states.

    Args:
        facts: the target's model_type and num_layers.
        exchange: a folder for states on their way.
    """
    assert spec.launch
    num_layers, environment = int(str(facts["num_layers"])), dict(spec.launch.environment)
    layers = aux_layers(spec, num_layers)
    if spec.engine == "vllm":
        flags = vllm.server_arguments(layers, num_layers, exchange)
        paths = [str(vllm.CONNECTOR_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        flags = sglang.server_arguments(layers, str(facts["model_type"]), num_layers)
    changed = {"flags": [*spec.launch.flags, *flags], "environment": environment}
    return spec.launch.model_copy(update=changed)


def _exchanges() -> Path:
    folder = store_root() / "exchange"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
