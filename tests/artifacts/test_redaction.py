"""No secret of the environment reaches states, results or logs."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect import flow

from tasks.artifacts.artifact import Rows
from tasks.artifacts.redaction import RedactFilter, redact, redacted, remember_secret
from tasks.artifacts.serializer import ParquetSerializer
from tasks.artifacts.task import artifact_task
from tests.artifacts.pipeline import NUMBERS

SECRET = "open-sesame-4711-and-more"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EYAS_TEST_API_KEY", SECRET)


@given(st.text(), st.text())
def test_the_value_of_a_secret_variable_never_remains(before: str, after: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EYAS_TEST_API_KEY", SECRET)
        assert SECRET not in redact(before + SECRET + after)


@given(st.text("abcdefghij klmnop.\n"))
def test_other_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("key", ["sk-or-v1-" + "a1" * 20, "sk-" + "Z" * 20, "hf_" + "b2" * 10])
def test_known_key_shapes_are_recognised_anywhere(key: str) -> None:
    assert redact(f"Authorization: Bearer {key}.") == "Authorization: Bearer [redacted]."


def test_a_secret_that_was_remembered_is_recognised_whatever_it_is_called() -> None:
    assert redact("from a block: mellon-mellon-7") == "from a block: mellon-mellon-7"
    remember_secret("mellon-mellon-7")
    assert redact("from a block: mellon-mellon-7") == "from a block: [redacted]"


def test_an_error_without_a_secret_stays_itself() -> None:
    error = ValueError("plain")
    assert redacted(error) is error


def test_a_secret_in_a_chained_error_is_found() -> None:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as exc:
            raise ValueError("outer") from exc
    except ValueError as exc:
        clean = redacted(exc)
    assert isinstance(clean, RuntimeError)
    assert str(clean) == "ValueError: outer"


def test_log_lines_and_tracebacks_are_cleaned() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RedactFilter())
    logger = logging.getLogger("eyas.test_redaction")
    logger.addHandler(handler)
    try:
        logger.error("key %s", SECRET)
        try:
            raise ValueError(SECRET)
        except ValueError:
            logger.exception("it failed")
        logger.error("plain %d", 3)
    finally:
        logger.removeHandler(handler)
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().count("[redacted]") == 2
    assert "plain 3" in stream.getvalue()


@artifact_task(version="1")
def leak(endpoint: str) -> Rows:
    """Fail with the secret in the message."""
    raise ConnectionError(f"401 from {endpoint} with key {SECRET}")


@artifact_task(version="1")
def note_endpoint(endpoint: str) -> Rows:
    """Succeed with an input that holds the secret."""
    return Rows(contract=NUMBERS.name, table=NUMBERS.table([{"value": len(endpoint)}]))


@pytest.mark.usefixtures("prefect_server")
def test_a_failed_task_shows_no_secret(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    states: list[Any] = []

    @flow(persist_result=False, result_serializer=ParquetSerializer())
    def leaky() -> None:
        states.append(leak("here", return_state=True))
        note_endpoint(f"https://host/?key={SECRET}")

    leaky()
    (state,) = states
    assert state.is_failed()
    assert "ConnectionError: 401 from here with key [redacted]" in str(state.message)
    assert SECRET not in repr(state)
    assert SECRET not in str(state.result(raise_on_failure=False))
    assert SECRET not in caplog.text
    written = [path for path in store.rglob("*") if path.is_file()]
    assert len(written) >= 3
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
