"""What to do about each way in which a request can fail: try again, give up the row, or stop the run.

Statuses, error bodies under status 200 and broken connections are judged by one table. Waiting and counting are the
client's affair.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

# Stable names of OpenRouter for what went wrong, by the status they stand for.
_ERROR_TYPES = {
    "rate_limit_exceeded": 429,
    "provider_overloaded": 503,
    "provider_unavailable": 502,
    "context_length_exceeded": 400,
    "payment_required": 402,
    "timeout": 408,
    "server": 500,
    "unmapped": 500,
}
_TRANSIENT = {408, 409, 425, 429}
_OVERLOAD = {429, 503, 529}
_LONGEST_DETAIL = 500


@dataclass(frozen=True)
class Retry:
    """Worth another attempt."""

    kind: str
    detail: str
    wait: float | None = None  # seconds that the server asked for
    slows: bool = False  # the endpoint has too much to do: every worker of it waits, and fewer are in flight
    free: bool = False  # does not count as an attempt: only our own pace was refused


@dataclass(frozen=True)
class Fatal:
    """No attempt can succeed: for this row, or for the whole run."""

    kind: str
    detail: str
    stops_run: bool = False


Verdict = Retry | Fatal


def judge_status(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> Verdict:
    """What a response that is no success means."""
    detail = f"status {status}: {body[:_LONGEST_DETAIL].decode(errors='replace').strip()}"
    return _judge(status, detail, _wait_of(headers, now))


def judge_document(document: Any, headers: Mapping[str, str], now: datetime) -> Verdict | None:
    """What a body under status 200 means; None for a good answer of any dialect."""
    if not isinstance(document, dict):
        return Retry("bad_body", "the body is no JSON object")
    if document.get("error") or document.get("object") == "error":
        return _judge_error(document.get("error") or document, headers, now)
    if "choices" in document:
        return _judge_choices(document, headers, now)
    if "meta_info" in document:
        return _judge_generated(document["meta_info"], headers, now)
    return Retry("bad_body", f"the body has neither choices nor meta_info, but {sorted(document)[:8]}")


def judge_exception(error: Exception) -> Verdict:
    """What a request that got no response, or only a part of one, means."""
    detail = f"{type(error).__name__}: {error}"[:_LONGEST_DETAIL]
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            return Fatal("certificate", f"{detail}; install the authority's certificate", stops_run=True)
        return Retry("connect", detail)
    if isinstance(error, httpx.TimeoutException):
        return Retry("idle", detail)
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError | httpx.InvalidURL):
        return Fatal("bad_request", detail, stops_run=True)
    return Retry("connection", detail)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for, whether as a number or as a date; None if it says nothing usable."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
        return max(0.0, seconds)
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _wait_of(headers: Mapping[str, str], now: datetime) -> float | None:
    return retry_after(headers.get("retry-after"), now)


def _judge(status: int, detail: str, wait: float | None) -> Verdict:
    detail = detail[:_LONGEST_DETAIL]
    if status == 402 and wait is not None:
        return Retry("in_flight_budget", detail, wait, slows=True, free=True)
    if status in (401, 402):
        remedy = "check the API key" if status == 401 else "add credits or raise the key's limit, then run again"
        return Fatal("unauthorized" if status == 401 else "no_credits", f"{detail}; {remedy}", stops_run=True)
    if status in _TRANSIENT or status >= 500:
        kind = "rate_limited" if status == 429 else "server_error" if status >= 500 else "transient"
        return Retry(kind, detail, wait, slows=status in _OVERLOAD or wait is not None)
    return Fatal("refused", detail)


def _judge_error(error: Any, headers: Mapping[str, str], now: datetime) -> Verdict:
    """An error object: its own code decides, as if it were the status."""
    said = error if isinstance(error, dict) else {"message": str(error)}
    metadata, availability = _dict(said.get("metadata")), _dict(said.get("availability"))
    code = said.get("code")
    names = (metadata.get("error_type"), code, said.get("type"))
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    if not isinstance(code, int) or not 400 <= code < 600:
        code = next((_ERROR_TYPES[name] for name in names if isinstance(name, str) and name in _ERROR_TYPES), 500)
    asked = next((v for v in (availability.get("retry_after"), metadata.get("retry_after")) if v is not None), None)
    wait = _wait_of(headers, now) if asked is None else retry_after(str(asked), now)
    return _judge(code, f"error {code} in the body: {said.get('message')}", wait)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _judge_choices(document: dict[str, Any], headers: Mapping[str, str], now: datetime) -> Verdict | None:
    choices = document["choices"]
    if not choices or not isinstance(choices, list) or not isinstance(choices[0], dict):
        return Retry("bad_body", "the body has no choices")
    choice = choices[0]
    if choice.get("error"):
        return _judge_error(choice["error"], headers, now)
    if choice.get("finish_reason") == "error":
        return Retry("server_error", "the answer ended with finish_reason error")
    message = choice.get("message")
    if "text" not in choice and not isinstance(message, dict):
        return Retry("bad_body", "the choice has no message")
    said = (message or {}) | {"text": choice.get("text")}
    parts = ("text", "content", "reasoning", "reasoning_content", "reasoning_details", "tool_calls")
    billed = _dict(document.get("usage")).get("completion_tokens")
    if not billed and not any(said.get(part) for part in parts):
        return Retry("empty_answer", "no text and no tokens")  # a provider that was still starting
    return None


def _judge_generated(meta: Any, headers: Mapping[str, str], now: datetime) -> Verdict | None:
    """SGLang's own answer: an aborted one says so in its finish reason."""
    reason = _dict(meta).get("finish_reason")
    if not isinstance(reason, dict):
        return Retry("bad_body", "the answer has no finish reason")
    if reason.get("type") != "abort":
        return None
    return _judge_error({"code": reason.get("status_code"), "message": reason.get("message")}, headers, now)
