"""What a flow does first: nothing can be pickled any more, and what is logged is cleaned once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.serializers import PickleSerializer

from flows.session import begin
from tasks.artifacts.redaction import RedactFilter


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    """A handler of the logger that the steps write to."""
    added = logging.NullHandler()
    logging.getLogger("eyas").addHandler(added)
    yield added
    logging.getLogger("eyas").removeHandler(added)


def test_a_flow_begins_with_an_open_store(store: Path) -> None:
    assert begin() == store


def test_nothing_can_be_pickled_once_a_flow_has_begun(store: Path) -> None:
    stored = PickleSerializer().dumps([1])
    assert PickleSerializer().loads(stored) == [1]
    begin()
    with pytest.raises(RuntimeError, match="tried to pickle its result"):
        PickleSerializer().dumps([1])
    with pytest.raises(RuntimeError, match="tried to pickle its result"):
        PickleSerializer().loads(stored)


def test_a_handler_cleans_its_records_once_however_often_a_flow_begins(store: Path, handler: logging.Handler) -> None:
    begin()
    begin()
    assert [type(added) for added in handler.filters] == [RedactFilter]


def test_a_secret_is_not_logged_once_a_flow_has_begun(
    store: Path, handler: logging.Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EYAS_TEST_TOKEN", "much-too-secret")
    written: list[str] = []
    monkeypatch.setattr(
        handler, "handle", lambda record: handler.filter(record) and written.append(record.getMessage())
    )
    begin()
    logging.getLogger("eyas.train").info("asking with %s", "much-too-secret")
    assert written == ["asking with [redacted]"]
