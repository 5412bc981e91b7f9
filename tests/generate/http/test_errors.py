"""What each status, body and exception means, and how long the server asks to wait."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.generate.http.errors import (
    Fatal,
    Retry,
    judge_document,
    judge_exception,
    judge_status,
    retry_after,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def judged(document: Any) -> Retry | Fatal | None:
    return judge_document(document, {}, NOW)


def test_an_error_under_200_is_judged_by_its_code() -> None:
    body = {"error": {"code": 429, "message": "Rate limited", "metadata": {"error_type": "rate_limit_exceeded"}}}
    verdict = judged(body)
    assert isinstance(verdict, Retry)
    assert (verdict.kind, verdict.slows) == ("rate_limited", True)


def test_an_error_in_the_choice_discards_what_came_with_it() -> None:
    error = {"code": 502, "message": "Upstream closed"}
    choice = {"index": 0, "finish_reason": "error", "message": {"content": "par"}, "error": error}
    verdict = judged({"choices": [choice]})
    assert isinstance(verdict, Retry)
    assert verdict.kind == "server_error"


def test_white_space_before_the_json_is_no_error() -> None:
    raw = '\n         \n         {"choices":[{"finish_reason":"stop","message":{"content":"ok"}}]}'
    assert judged(json.loads(raw)) is None


def test_missing_usage_is_no_error() -> None:
    assert judged({"choices": [{"finish_reason": "stop", "message": {"reasoning": "R", "content": "A"}}]}) is None


def test_credits_without_a_time_to_wait_stop_the_run() -> None:
    verdict = judge_status(402, {}, b'{"error":{"code":402,"message":"Insufficient credits"}}', NOW)
    assert isinstance(verdict, Fatal)
    assert verdict.stops_run
    assert "Insufficient credits" in verdict.detail
    waiting = judge_status(402, httpx.Headers({"Retry-After": "2"}), b"", NOW)
    assert waiting == Retry("in_flight_budget", "status 402: ", 2.0, slows=True, free=True)


@pytest.mark.parametrize(
    ("code", "error_type", "kind"),
    [
        ("rate_limit_exceeded", None, "rate_limited"),
        (None, "provider_overloaded", "server_error"),
        (None, "timeout", "transient"),
        ("503", None, "server_error"),
        (None, None, "server_error"),
        (0, "unmapped", "server_error"),
    ],
)
def test_errors_are_known_by_their_stable_names_too(code: Any, error_type: Any, kind: str) -> None:
    verdict = judged({"error": {"code": code, "message": "x", "metadata": {"error_type": error_type}}})
    assert isinstance(verdict, Retry)
    assert verdict.kind == kind


def test_a_prompt_that_is_too_long_is_refused_whatever_the_status() -> None:
    error = {"message": "too long", "metadata": {"error_type": "context_length_exceeded"}}
    assert judged({"error": error}) == Fatal("refused", "error 400 in the body: too long")


def test_an_error_may_say_how_long_to_wait() -> None:
    verdict = judged({"error": {"code": 503, "message": "x", "availability": {"retry_after": 7}}})
    assert isinstance(verdict, Retry)
    assert verdict.wait == 7.0


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"message": None}]},
        {"meta_info": None},
        {"meta_info": {"finish_reason": None}},
        {"error": "just a text"},
        {"object": "error", "message": "old vLLM", "code": 500},
        {"meta_info": {"finish_reason": {"type": "abort", "message": "x"}}},
        {"choices": [{"finish_reason": "stop", "message": {"content": ""}}]},
    ],
)
def test_what_is_no_answer_is_tried_again(document: Any) -> None:
    assert isinstance(judged(document), Retry)


def test_an_empty_answer_that_was_billed_is_an_answer() -> None:
    document = {"choices": [{"finish_reason": "stop", "message": {"content": ""}}], "usage": {"completion_tokens": 1}}
    assert judged(document) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | (
                st.dictionaries(
                    st.sampled_from(
                        [
                            "error",
                            "choices",
                            "message",
                            "code",
                            "metadata",
                            "meta_info",
                            "finish_reason",
                            "usage",
                            "content",
                            "type",
                            "availability",
                            "retry_after",
                        ]
                    ),
                    inner,
                )
            )
        ),
        max_leaves=12,
    )
)
def test_no_document_breaks_the_judge(document: Any) -> None:
    assert judged(document) is None or isinstance(judged(document), Retry | Fatal)


@given(st.floats(0, 1e6))
def test_retry_after_in_seconds_is_read(seconds: float) -> None:
    assert retry_after(f" {seconds!r} ", NOW) == seconds


@given(st.integers(-86400, 86400 * 30))
def test_retry_after_as_a_date_is_the_time_until_then(seconds: int) -> None:
    date = NOW + timedelta(seconds=seconds)
    assert retry_after(format_datetime(date, usegmt=True), NOW) == max(0.0, float(seconds))
    assert retry_after(date.strftime("%A, %d-%b-%y %H:%M:%S GMT"), NOW) == max(0.0, float(seconds))
    assert retry_after(date.strftime("%a %b %e %H:%M:%S %Y"), NOW) == max(0.0, float(seconds))


@given(st.text())
def test_no_retry_after_is_negative_or_breaks(text: str) -> None:
    seconds = retry_after(text, NOW)
    assert seconds is None or 0 <= seconds < float("inf")


@pytest.mark.parametrize("value", [None, "", "soon", "-1", "nan", "inf", "1e999", "Sun, 99 Foo 2026"])
def test_a_retry_after_that_says_nothing_is_none(value: str | None) -> None:
    assert retry_after(value, NOW) is None


def test_exceptions_tell_what_never_reached_the_server() -> None:
    assert judge_exception(httpx.ConnectError("refused")) == Retry("connect", "ConnectError: refused")
    assert judge_exception(httpx.ReadTimeout("silent")) == Retry("idle", "ReadTimeout: silent")
    assert judge_exception(httpx.ReadError("reset")) == Retry("connection", "ReadError: reset")
    verdict = judge_exception(httpx.UnsupportedProtocol("ftp"))
    assert isinstance(verdict, Fatal)
    assert verdict.stops_run
