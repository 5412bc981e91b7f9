"""The Prefect server of a run: the configured one, one that already runs here, or a temporary one that ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

import flows.server
from flows.server import Address, ServerError, child_server, is_prefect, server_in_use


class AlwaysOk(BaseHTTPRequestHandler):
    """Answers 200 to everything, as a development server of something else does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>all is well</html>")

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def foreign_program() -> Iterator[Address]:
    """A web server that is no Prefect server."""
    with HTTPServer(("127.0.0.1", 0), AlwaysOk) as program:
        Thread(target=program.serve_forever, daemon=True).start()
        yield Address("127.0.0.1", program.server_port)
        program.shutdown()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """The addresses at which temporary servers would have been started; none is."""
    addresses = []

    @contextmanager
    def pretend(address: Address, *_: object) -> Iterator[None]:
        addresses.append(address)
        yield

    monkeypatch.setattr(flows.server, "child_server", pretend)
    return addresses


@pytest.fixture
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PREFECT_SERVER_API_HOST", raising=False)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        yield


def test_a_configured_server_wins(started: list[Address], foreign_program: Address) -> None:
    with temporary_settings({PREFECT_API_URL: foreign_program.api}), server_in_use():
        assert PREFECT_API_URL.value() == foreign_program.api
    assert not started


def test_a_configured_server_that_does_not_answer_is_named(started: list[Address]) -> None:
    nowhere = Address.free().api
    with (
        temporary_settings({PREFECT_API_URL: nowhere}),
        pytest.raises(ServerError, match=f"PREFECT_API_URL is {nowhere}, where nothing answers"),
        server_in_use(),
    ):
        pass
    assert not started


@pytest.mark.usefixtures("_nothing_configured")
def test_a_temporary_server_is_started_when_none_runs(started: list[Address], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(Address.free().port))
    with server_in_use():
        assert [address.api for address in started] == [PREFECT_API_URL.value()]
    assert not PREFECT_API_URL.value()


@pytest.mark.usefixtures("_nothing_configured")
def test_a_foreign_program_on_the_port_is_not_taken_for_prefect(
    foreign_program: Address, started: list[Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert httpx.get(f"{foreign_program.api}/health").status_code == httpx.codes.OK
    assert not is_prefect(foreign_program.api)
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(foreign_program.port))
    with server_in_use():
        assert started
        assert PREFECT_API_URL.value() != foreign_program.api


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_configured")
def test_a_server_that_runs_at_the_configured_port_is_used_and_ends_with_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = Address.free()
    with child_server(address, "test-server.log"):
        monkeypatch.setenv("PREFECT_SERVER_API_PORT", str(address.port))
        with server_in_use():
            assert PREFECT_API_URL.value() == address.api
        assert is_prefect(address.api), "a server that was not started for the run is not stopped with it"
    assert not address.answers()
