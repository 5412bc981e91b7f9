"""One fake server for the tests of a file, which may start its own; each test finds it without faults or counts."""

from collections.abc import Iterator

import pytest

from tests.servers.fake import FakeServer, fake_server


@pytest.fixture(scope="module")
def _server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.fixture
def server(_server: FakeServer) -> FakeServer:
    """A fake server."""
    _server.script()
    _server.reset()
    return _server
