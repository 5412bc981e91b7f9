"""A Prefect server for tests that run flows."""

from collections.abc import Iterator

import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A Prefect server with an empty database, for flow runs in this process."""
    with (
        prefect_test_harness(server_startup_timeout=120),
        # The heartbeat thread would make every flow run at least a second long.
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield
