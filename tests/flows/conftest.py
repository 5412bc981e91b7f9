"""What `begin` changes in a process, for as long as that lives, is put back after each test."""

import logging
from collections.abc import Iterator

import pytest
from prefect.serializers import PickleSerializer

LOGGERS = ("", "prefect", "prefect.flow_runs", "prefect.task_runs", "prefect.extra", "eyas")


@pytest.fixture(autouse=True)
def _restored_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the serializer and the filters of all handlers back."""
    for method in ("dumps", "loads"):
        monkeypatch.setattr(PickleSerializer, method, getattr(PickleSerializer, method))
    handlers = [handler for name in LOGGERS for handler in logging.getLogger(name).handlers]
    filters = [(handler, list(handler.filters)) for handler in handlers]
    level = logging.getLogger("eyas").level
    yield
    for handler, before in filters:
        handler.filters[:] = before
    logging.getLogger("eyas").setLevel(level)
