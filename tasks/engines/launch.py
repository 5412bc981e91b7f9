"""A server of an engine that runs while a block runs: started on a free port, watched, and gone however we end.

Its lines go to a file, while it starts also to the task's log, and later only what sounds like trouble.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from schemas.errors import EngineError, RunStopped, ServerEnded
from schemas.serving import LaunchSpec
from tasks.artifacts.redaction import SECRET_VARIABLE
from tasks.artifacts.store import store_root
from tasks.children import Child, child
from tasks.engines.environments import python_of
from tasks.engines.output import Output

_HOST = "127.0.0.1"
_STOP_SECONDS = 20
_DEATH_SECONDS = 1.0  # from a refused connection to the end of all its processes
_POLL_SECONDS = 0.3
_ASK_SECONDS = 30
_LLAMACPP = Path(__file__).with_name("llamacpp_server.py")
# ours would be taken for the engine's own, or send its telemetry
_NOT_PASSED_ON = re.compile(r"^(PYTHON.*|VIRTUAL_ENV|PREFECT_.*|PYTEST_.*)$")
_QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
_PORT_TAKEN = re.compile(r"address already in use|port .* is (already )?in use", re.IGNORECASE)


@dataclass(frozen=True)
class Server:
    """A server that was started; `url` has no path, and `model` is the name under which it serves the model."""

    url: str
    model: str
    pid: int
    log: Path
    check: Callable[..., None]
    """Raises ServerEnded with the last lines of its log if it has ended, or does within the seconds that are given."""


@contextlib.contextmanager
def launched(
    spec: LaunchSpec, model: Path, name: str, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Server]:
    """A server that answers, until the block ends.

    Args:
        spec: which engine, and how.
        model: a Hugging Face folder; for llama.cpp a GGUF file.
        name: under which the model is served.
        is_stopped: whether to wait no longer for the start, which may take minutes.

    Raises:
        EngineError: the engine is not installed, the port is taken, or the server does not start in time, dies, or
            serves another model.
        ServerEnded: it died in the block, which failed for that reason.
        RunStopped: while it started.
    """
    python = python_of(spec.engine)
    port = _port(spec)
    url = f"http://{_HOST}:{port}"
    command = [str(python), *_arguments(spec, model, name, port)]
    with (
        _log_file(f"{spec.engine}-{name}") as log,
        Output(log, spec.engine) as output,
        child(command, _environment(spec, os.environ), subprocess.PIPE, _STOP_SECONDS) as process,
    ):
        assert process.output
        output.follow(process.output)
        _await_ready(spec, url, process, output, is_stopped)
        require_model(url, name)
        output.started()

        def check(wait_seconds: float = 0) -> None:
            if (code := process.ended(wait_seconds)) is not None:
                output.finish()
                raise ServerEnded(f"the {spec.engine} server at {url} {_ended(code)}; {output.tail()}")

        try:
            yield Server(url, name, process.pid, Path(log.name), check)
        except ServerEnded:
            raise
        except Exception as exc:
            try:
                check(_DEATH_SECONDS)
            except ServerEnded as ended:
                raise ended from exc
            raise
        finally:
            output.ending()


def served_models(url: str) -> list[str]:
    """The names of the models that a running server has.

    Raises:
        EngineError: it does not answer, or not as an engine does.
    """
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=_ASK_SECONDS, trust_env=False).raise_for_status().json()
        return [str(one["id"]) for one in answer["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as exc:
        raise EngineError(f"the server at {url} does not say which models it has: {exc!r}") from exc


def require_model(url: str, name: str) -> None:
    """Refuse a server that has another model.

    Raises:
        EngineError: names what it has.
    """
    if name not in (found := served_models(url)):
        raise EngineError(
            f"the server at {url} serves {', '.join(found[:8]) or 'no model'}, not {name}: another program took the "
            "port, or the server was started with another model"
        )


def _arguments(spec: LaunchSpec, model: Path, name: str, port: int) -> list[str]:
    where = ["--host", _HOST, "--port", str(port)]
    if spec.engine == "llamacpp":
        return ["-I", str(_LLAMACPP), "--model", str(model), "--alias", name, *where, *spec.flags]
    module, flag = {
        "vllm": ("vllm.entrypoints.openai.api_server", "--model"),
        "sglang": ("sglang.launch_server", "--model-path"),
    }[spec.engine]
    quantization = ["--quantization", spec.quantization] if spec.quantization else []
    served = [flag, str(model), "--served-model-name", name, *where, "--dtype", spec.dtype]
    return ["-m", module, *served, *quantization, *spec.flags]


def _environment(spec: LaunchSpec, ours: Mapping[str, str]) -> dict[str, str]:
    """What the server inherits: no secrets, and nothing that is about our own Python."""
    inherited = {
        name: value
        for name, value in ours.items()
        if not _NOT_PASSED_ON.match(name) and not SECRET_VARIABLE.search(name)
    }
    return {**inherited, **_QUIET, "PYTHONUNBUFFERED": "1", **spec.environment}


def _port(spec: LaunchSpec) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: past connections are no hindrance
        try:
            probe.bind((_HOST, spec.port))
        except OSError as exc:
            raise EngineError(
                f"port {spec.port} is taken by another program: stop it, or give launch.port 0 for a free one"
            ) from exc
        return probe.getsockname()[1]


def _log_file(name: str) -> IO[bytes]:
    """An empty file in the store that no other server writes to now."""
    folder = store_root() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    for number in itertools.count(1):
        log = open(folder / f"{stem}-{number}.log", "ab")  # noqa: SIM115 (the caller closes it)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.close()
            continue
        log.truncate(0)
        return log
    raise AssertionError


def _await_ready(spec: LaunchSpec, url: str, process: Child, output: Output, is_stopped: Callable[[], bool]) -> None:
    deadline = time.monotonic() + spec.start_seconds
    is_ready = False
    while not is_ready:
        is_ready = _is_healthy(url)
        if (code := process.ended()) is not None:  # whatever answers is another program
            output.finish()
            taken = _PORT_TAKEN.search(tail := output.tail())
            what = (
                f"another program took the port of {url} while {spec.engine} started"
                if taken
                else (f"the {spec.engine} server {_ended(code)} before it was ready")
            )
            raise EngineError(f"{what}; {tail}")
        if is_stopped():
            raise RunStopped(f"the run was stopped while {spec.engine} started; start again to go on")
        if time.monotonic() > deadline:
            raise EngineError(
                f"the {spec.engine} server was not ready within {spec.start_seconds:g} s: raise launch.start_seconds, "
                f"or correct launch.flags; {output.tail()}"
            )
        if not is_ready:
            time.sleep(_POLL_SECONDS)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=_ASK_SECONDS, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _ended(code: int) -> str:
    return f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
