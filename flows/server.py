"""Prefect servers on this machine: where one is, whether one answers, and a child process that never outlives us."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

import tasks.environment  # noqa: F401 (before Prefect)
from schemas.errors import EyasError
from tasks.children import Child, child

_START_SECONDS = 180
_STOP_SECONDS = 20
_DRAIN_SECONDS = 10
_LIKE_EPHEMERAL = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT_SERVER_UI_ENABLED": "false"}

_NO_SETTINGS: Mapping[str, str] = {}


class ServerError(EyasError):
    """The Prefect server cannot be started or reached."""


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    host: str
    port: int

    @classmethod
    def from_environment(cls) -> Address:
        """What PREFECT_SERVER_API_HOST and PREFECT_SERVER_API_PORT say, by default 127.0.0.1:4200."""
        port = os.environ.get("PREFECT_SERVER_API_PORT", "4200")
        if not port.isdecimal():
            raise ServerError(f"PREFECT_SERVER_API_PORT is {port!r}, it must be a number")
        return cls(os.environ.get("PREFECT_SERVER_API_HOST", "127.0.0.1"), int(port))

    @classmethod
    def free(cls) -> Address:
        """A port of this machine that nothing listens on."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return cls("127.0.0.1", probe.getsockname()[1])

    @property
    def page(self) -> str:
        """The web page's URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def api(self) -> str:
        """The API's URL."""
        return f"{self.page}/api"

    @property
    def environment(self) -> dict[str, str]:
        """The settings with which a server listens here, and its clients find it."""
        return {
            "PREFECT_SERVER_API_HOST": self.host,
            "PREFECT_SERVER_API_PORT": str(self.port),
            "PREFECT_UI_URL": self.page,
            "PREFECT_API_URL": self.api,
        }

    def answers(self) -> bool:
        """Whether any program listens here."""
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex((self.host, self.port)) == 0


def is_prefect(api: str) -> bool:
    """Whether a healthy Prefect server answers at this API URL."""
    try:
        health = httpx.get(f"{api}/health", timeout=5)
        version = httpx.get(f"{api}/admin/version", timeout=5)
    except httpx.HTTPError:
        return False
    return health.status_code == version.status_code == httpx.codes.OK and health.text.strip() == "true"


@contextlib.contextmanager
def server_in_use() -> Iterator[None]:
    """Within the block Prefect has a server: the configured one, the one that runs here, or a temporary child.

    A child of ours rather than Prefect's own ephemeral server, which outlives a process that is killed.

    Raises:
        ServerError: the configured server cannot be reached, or a temporary one is needed and does not start.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if configured := PREFECT_API_URL.value():
        _require_reachable(configured)
        yield
        return
    running = Address.from_environment()
    if is_prefect(running.api):
        with temporary_settings({PREFECT_API_URL: running.api}):
            yield
        return
    address = Address.free()
    with (
        child_server(address, "eyas-temporary-server.log", _LIKE_EPHEMERAL),
        temporary_settings({PREFECT_API_URL: address.api}),
    ):
        try:
            yield
        finally:
            _send_what_waits()


@contextlib.contextmanager
def child_server(address: Address, log_name: str, settings: Mapping[str, str] = _NO_SETTINGS) -> Iterator[None]:
    """A Prefect server that ends with the block, or with this process when it is killed; it logs to Prefect's home.

    Raises:
        ServerError: the server does not start.
    """
    from prefect.settings import get_current_settings

    log = get_current_settings().home / log_name
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"starting the Prefect server (its log: {log})", flush=True)
    command = [sys.executable, "-m", "prefect", "server", "start"]
    environment = {**os.environ, **address.environment, **settings}
    # in a session of its own, Ctrl-C reaches us first: stopping the flows needs the server
    with open(log, "wb") as output, child(command, environment, output, _STOP_SECONDS) as process:
        _wait_until_healthy(address, process, log)
        yield


def _require_reachable(api: str) -> None:
    try:
        httpx.get(f"{api}/health", timeout=10)  # whatever it answers, someone is there; Prefect handles the rest
    except httpx.HTTPError as exc:
        raise ServerError(
            f"PREFECT_API_URL is {api}, where nothing answers ({exc}): start that server, or unset it"
        ) from exc


def _wait_until_healthy(address: Address, process: Child, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.ended() is None and time.monotonic() < deadline:
        if address.answers() and is_prefect(address.api):
            return
        time.sleep(0.2)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise ServerError(f"the Prefect server did not start at {address.page}; the end of {log}:\n{tail}")


def _send_what_waits() -> None:
    """Prefect sends events and logs from threads, and waits for these only when the interpreter ends: too late here."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=_DRAIN_SECONDS)
