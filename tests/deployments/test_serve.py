"""`make up`: finds or starts a Prefect server, serves the flows, and takes the server with it when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prefect.settings import PREFECT_API_URL

from deployments.serve import BENCHMARKED, RECIPES, SERVED, main, server
from flows.server import Address, ServerError, is_prefect
from schemas.recipe import load_recipe
from tasks.artifacts.files import write_bytes


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_SERVER_API_HOST", "PREFECT_SERVER_API_PORT", "PREFECT_UI_URL"):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores what the code under test sets
        monkeypatch.delenv(name)


@pytest.fixture
def other_program() -> Iterator[int]:
    """A port on which something listens that is no Prefect server."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_address_is_this_machine_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Address.from_environment().api == "http://127.0.0.1:4200/api"
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "4321")
    assert Address.from_environment().page == "http://127.0.0.1:4321"
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "many")
    with pytest.raises(ServerError, match="'many', it must be a number"):
        Address.from_environment()


def test_a_port_of_another_program_is_a_clear_error(
    other_program: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deployments.serve.is_prefect", lambda _: False)
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(other_program))
    assert main() == 1
    assert f"port {other_program} of 127.0.0.1 is taken by another program" in capsys.readouterr().err


def test_a_configured_server_that_is_away_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    with pytest.raises(ServerError, match="no Prefect server answers"), server():
        pass


@pytest.mark.usefixtures("prefect_server")
def test_a_running_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    running = PREFECT_API_URL.value()
    assert running
    assert is_prefect(running)
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(httpx.URL(running).port))
    with server() as api:
        assert httpx.URL(api).port == httpx.URL(running).port
        assert os.environ["PREFECT_API_URL"] == api
    assert is_prefect(running), "a server that was not started here is not stopped either"


@pytest.mark.parametrize("name", SERVED)
def test_every_served_recipe_can_be_used(name: str) -> None:
    assert load_recipe(RECIPES / f"{name}.yaml").name == name


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)


def served(api: str) -> set[str]:
    try:
        answer = httpx.post(f"{api}/deployments/filter", json={}, timeout=5)
    except httpx.HTTPError:
        return set()
    return {deployment["name"] for deployment in answer.json()} if answer.is_success else set()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_the_flows_are_served_and_the_server_ends_with_the_command(how: signal.Signals, tmp_path: Path) -> None:
    address = Address("127.0.0.1", free_port())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "EYAS_STORE": str(tmp_path / "store"),
        "PREFECT_SERVER_API_PORT": str(address.port),
    }
    log = tmp_path / "log"
    write_bytes(log, b"")
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "deployments.serve"], env=environment, stdout=output, stderr=output
        )
    try:
        wait_for(lambda: served(address.api) == {*SERVED, *BENCHMARKED}, process, log)
        assert f"Open {address.page}/deployments" in log.read_text()
        process.send_signal(how)
        code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert code == (0 if how == signal.SIGINT else -signal.SIGKILL), log.read_text()
    deadline = time.monotonic() + 30
    while is_prefect(address.api):
        assert time.monotonic() < deadline, "the server outlived the command"
        time.sleep(0.2)
