"""Keeps secrets out of logs, states and results: replaces the values of secret variables and well-known key shapes."""

from __future__ import annotations

import logging
import os
import re
import traceback

SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|AUTH_STRING)$")
_KEY_SHAPES = re.compile(r"sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}")
_PLACEHOLDER = "[redacted]"
_SHORTEST_SECRET = 8


_remembered: set[str] = set()


def remember_secret(value: str) -> None:
    """Take a secret that has come from elsewhere than a variable with a telling name, such as a Secret block."""
    if len(value) >= _SHORTEST_SECRET:
        _remembered.add(value)


def redact(text: str) -> str:
    """The text without any secret that this process knows or recognises."""
    for value in tuple(_remembered):
        text = text.replace(value, _PLACEHOLDER)
    for name, value in os.environ.items():
        if SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, _PLACEHOLDER)
    return _KEY_SHAPES.sub(_PLACEHOLDER, text)


def redacted(error: Exception) -> Exception:
    """The same error, or a stand-in of plain text where the error or its traceback shows a secret."""
    full = "".join(traceback.format_exception(error))
    if redact(full) == full:
        return error
    stand_in = RuntimeError(f"{type(error).__name__}: {redact(str(error))}")
    stand_in.__suppress_context__ = True
    return stand_in


class RedactFilter(logging.Filter):
    """Cleans messages and tracebacks; attach it to handlers, since a logger's filter misses its children's records."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (clean := redact(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        return True
