"""`make up`: a Prefect server on this machine, and the flows that can be started from its web page. Ctrl-C stops both.

A Prefect server that already runs at the address, or the one that PREFECT_API_URL names, is used instead of a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx

import tasks.environment  # noqa: F401 (before Prefect)
from schemas.errors import EyasError
from schemas.recipe import load_recipe

RECIPES = Path(__file__).parent / "recipes"
SERVED = ("quickstart", "smoke")
_START_SECONDS = 180
_STOP_SECONDS = 20
_PR_SET_PDEATHSIG = 1


class ServerError(EyasError):
    """The Prefect server cannot be started or reached."""


@dataclass(frozen=True)
class Address:
    """Where the server is."""

    host: str
    port: int

    @classmethod
    def from_environment(cls) -> Address:
        """What PREFECT_SERVER_API_HOST and PREFECT_SERVER_API_PORT say, by default 127.0.0.1:4200."""
        port = os.environ.get("PREFECT_SERVER_API_PORT", "4200")
        if not port.isdecimal():
            raise ServerError(f"PREFECT_SERVER_API_PORT is {port!r}, it must be a number")
        return cls(os.environ.get("PREFECT_SERVER_API_HOST", "127.0.0.1"), int(port))

    @property
    def page(self) -> str:
        """The web page's URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def api(self) -> str:
        """The API's URL."""
        return f"{self.page}/api"


def main() -> int:
    """Serve until interrupted; returns 1 with the reason if that cannot be done."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell started us in the background
    try:
        with server() as api:
            _serve_flows(api)
    except EyasError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped")
    return 0


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A running server's API: the configured one, one that runs already, or a child process that ends with the block.

    Raises:
        ServerError: the port belongs to another program, or the server does not start.
    """
    if configured := os.environ.get("PREFECT_API_URL"):
        if not is_prefect(configured):
            raise ServerError(
                f"PREFECT_API_URL is {configured}, where no Prefect server answers: start it, or unset it"
            )
        print(f"using the Prefect server at {configured}")
        yield configured
        return
    address = Address.from_environment()
    os.environ |= {
        "PREFECT_SERVER_API_HOST": address.host,
        "PREFECT_SERVER_API_PORT": str(address.port),
        "PREFECT_UI_URL": address.page,
        "PREFECT_API_URL": address.api,
    }
    if is_prefect(address.api):
        print(f"using the Prefect server that already runs at {address.page}")
        yield address.api
        return
    if _answers(address):
        raise ServerError(
            f"port {address.port} of {address.host} is taken by another program: "
            "stop it, or choose another port: PREFECT_SERVER_API_PORT=4201 make up"
        )
    with _started(address):
        yield address.api


def is_prefect(api: str) -> bool:
    """Whether a healthy Prefect server answers at this API URL."""
    try:
        health = httpx.get(f"{api}/health", timeout=5)
        version = httpx.get(f"{api}/admin/version", timeout=5)
    except httpx.HTTPError:
        return False
    return health.status_code == version.status_code == httpx.codes.OK and health.text.strip() == "true"


def _serve_flows(api: str) -> None:
    from prefect import serve
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    from flows.build_draft import build_draft

    deployments = [
        cast(
            RunnerDeployment,
            build_draft.to_deployment(
                name,
                parameters={"recipe": load_recipe(RECIPES / f"{name}.yaml").model_dump(mode="json")},
                tags=["eyas"],
                entrypoint_type=EntrypointType.MODULE_PATH,
            ),
        )
        for name in SERVED
    ]
    page = api.removesuffix("/api")
    print(f"\nOpen {page}/deployments, choose {' or '.join(SERVED)}, and press Run. Ctrl-C here stops all.\n")
    serve(*deployments, limit=1, pause_on_shutdown=False)


@contextlib.contextmanager
def _started(address: Address) -> Iterator[None]:
    from prefect.settings import get_current_settings

    log = get_current_settings().home / "eyas-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"starting the Prefect server (its log: {log})")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C must reach us first: stopping the flows needs the server
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (no other thread runs yet)
        )
    try:
        _wait_until_healthy(address, process, log)
        yield
    finally:
        _stop(process)


def _wait_until_healthy(address: Address, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if is_prefect(address.api):
            return
        time.sleep(0.5)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise ServerError(f"the Prefect server did not start at {address.page}; the end of {log}:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _die_with_parent() -> None:
    """Runs in the child: the kernel kills it when this process ends, however it ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _answers(address: Address) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((address.host, address.port)) == 0


if __name__ == "__main__":
    sys.exit(main())
