"""Every way in which a server can go wrong, and what the client makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.generate.http.asking import DIALECTS, ask, expected, prepare
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

CHAT, SGLANG, VLLM = DIALECTS["openrouter"], DIALECTS["sglang"], DIALECTS["vllm chat"]
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

# fault, its options, and what the attempt is called
TRANSIENT: list[tuple[Any, dict[str, Any], str]] = [
    ("status", {"status": 408}, "transient"),
    ("status", {"status": 409}, "transient"),
    ("status", {"status": 425}, "transient"),
    ("status", {"status": 429}, "rate_limited"),
    *[("status", {"status": status}, "server_error") for status in (500, 502, 503, 504, 524, 529)],
    ("reset_before", {}, "connection"),
    ("reset_middle", {}, "connection"),
    ("cut", {}, "connection"),
    ("truncated_json", {}, "bad_body"),
    ("not_json", {}, "bad_body"),
    ("null_choices", {}, "bad_body"),
    ("error_in_body", {"code": 429}, "rate_limited"),
    ("error_in_body", {"code": 502}, "server_error"),
    ("error_in_body", {"code": "rate_limit_exceeded"}, "rate_limited"),
    ("error_in_choice", {"code": 502}, "server_error"),
]


@pytest.mark.parametrize(("kind", "options", "outcome"), TRANSIENT)
def test_what_passes_is_tried_again(server: FakeServer, kind: Any, options: dict[str, Any], outcome: str) -> None:
    server.script(Fault(kind, times=2, options=options))
    request = prepare(CHAT)
    told = ask(server, CHAT, [request])
    assert told.outcomes == [outcome, outcome, "answered"]
    assert [attempt.retry for attempt in told.attempts] == [0, 1, 2]
    assert told.answer.retries == 2
    assert told.answer.document["choices"][0]["message"]["content"] == expected(request).text
    assert server.summary()["keys"][request.key]["answered"] == 1


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("reset_middle", "connection"),
        ("cut", "connection"),
        ("error_in_stream", "rate_limited"),
        ("error_in_body", "rate_limited"),
        ("null_choices", "bad_stream"),
        ("not_json", "bad_body"),
    ],
)
def test_a_broken_stream_is_no_answer(server: FakeServer, kind: Any, outcome: str) -> None:
    server.script(Fault(kind, times=1))
    request = prepare(CHAT, stream=True)
    told = ask(server, CHAT, [request])
    assert told.outcomes == [outcome, "answered"]
    assert told.answer.document["choices"][0]["message"]["content"] == expected(request).text


@STREAMS
@pytest.mark.parametrize("kind", ["reset_middle", "cut"])
def test_an_answer_lost_on_its_way_leaves_the_id_to_ask_its_cost_by(
    server: FakeServer, kind: Any, stream: bool
) -> None:
    server.script(Fault(kind, times=1))
    request = prepare(CHAT, stream=stream)
    lost = ask(server, CHAT, [request]).attempts[0]
    assert lost.billed == "unknown"
    assert lost.facts.generation_id == f"gen-{request.key[:20]}-0"
    assert server.summary()["keys"][request.key]["billed"] == 2


@STREAMS
@pytest.mark.parametrize("kind", ["stall_before", "stall_middle"])
def test_silence_ends_an_attempt(server: FakeServer, kind: Any, stream: bool) -> None:
    server.script(Fault(kind, times=1))
    told = ask(server, CHAT, [prepare(CHAT, stream=stream)], idle_seconds=0.5, retries=20)
    assert (told.outcomes[0], told.outcomes[-1]) == ("idle", "answered")
    assert told.attempts[0].billed == "unknown"


def test_a_stream_that_never_ends_meets_the_deadline(server: FakeServer) -> None:
    server.script(Fault("slow", times=1, options={"seconds": 0.2}))
    told = ask(server, CHAT, [prepare(CHAT, stream=True)], deadline_seconds=1.0, retries=20)
    assert (told.outcomes[0], told.outcomes[-1]) == ("deadline", "answered")
    assert told.attempts[0].facts.generation_id
    assert told.attempts[0].billed == "unknown"


def test_retries_come_to_an_end(server: FakeServer) -> None:
    server.script(Fault("status", probability=1, options={"status": 503}))
    told = ask(server, CHAT, [prepare(CHAT)], retries=2)
    assert told.outcomes == ["server_error"] * 3
    assert (told.failure.kind, told.failure.attempts, told.failure.retryable) == ("server_error", 3, True)


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
def test_a_refused_row_is_not_asked_again_and_stops_nobody(server: FakeServer, status: int) -> None:
    requests = [prepare(CHAT, number) for number in range(4)]
    server.script(Fault("status", times=1, key=requests[0].key, options={"status": status}))
    told = ask(server, CHAT, requests)
    refused, *others = told.results
    assert (refused.kind, refused.retryable, refused.stops_run) == ("refused", False, False)  # type: ignore[union-attr]
    assert all(hasattr(other, "body") for other in others)
    assert len(told.attempts) == 4


@pytest.mark.parametrize(("status", "kind"), [(401, "unauthorized"), (402, "no_credits")])
@pytest.mark.parametrize("fault", ["status", "error_in_body"])
def test_a_refused_key_or_an_empty_account_stops_the_run(
    server: FakeServer, fault: Any, status: int, kind: str
) -> None:
    server.script(Fault(fault, probability=1, options={"status": status, "code": status}))
    told = ask(server, CHAT, [prepare(CHAT, number) for number in range(30)], concurrency=3)
    kinds = [result.kind for result in told.results]  # type: ignore[union-attr]
    assert kinds[0] == kind
    assert set(kinds) == {kind, "stopped"}
    assert server.summary()["requests"] == len(told.attempts) <= 3


def test_a_budget_for_requests_in_flight_only_slows(server: FakeServer) -> None:
    server.script(Fault("status", times=12, options={"status": 402, "retry_after": "3"}))
    told = ask(server, CHAT, [prepare(CHAT)], retries=1)
    assert told.outcomes == ["in_flight_budget"] * 12 + ["answered"]
    assert sum(told.waits) >= 12 * 3


def test_an_account_with_such_a_budget_answers_everything() -> None:
    with fake_server(in_flight_usd=0.0004, latency=0.1) as server:  # two fit: thirty that start together meet
        requests = [prepare(CHAT, number) for number in range(60)]
        told = ask(server, CHAT, requests, concurrency=30)
        assert all(hasattr(result, "body") for result in told.results)
        assert server.summary()["outcomes"]["status 402"] > 0
        assert server.summary()["answered"] == 60


def test_an_account_without_credits_bills_no_more_than_it_had() -> None:
    with fake_server(limit_usd=0.002) as server:
        told = ask(server, CHAT, [prepare(CHAT, number) for number in range(200)])
        assert "no_credits" in {getattr(result, "kind", "answered") for result in told.results}
        assert 0 < server.summary()["billed_micros"] <= 2000


@pytest.mark.parametrize(("said", "least"), [("30", 30.0), ("date:60", 58.0)])
def test_retry_after_holds_for_every_worker_of_the_endpoint(server: FakeServer, said: str, least: float) -> None:
    requests = [prepare(SGLANG, number) for number in range(64)]
    server.script(Fault("status", times=1, options={"status": 429, "retry_after": said}))
    told = ask(server, SGLANG, requests, concurrency=1)
    assert told.outcomes == ["rate_limited", *["answered"] * 64]
    assert sum(wait for wait in told.waits if wait >= least) >= least
    after = [wait for wait in told.waits if 0 < wait < least]
    assert len(set(after)) == len(after)  # not all come back at once


def test_a_server_with_less_room_than_asked_for_is_not_overrun() -> None:
    with fake_server(capacity=10, latency=0.01) as server:
        told = ask(server, SGLANG, [prepare(SGLANG, number) for number in range(400)], concurrency=80, retries=30)
        assert all(hasattr(result, "body") for result in told.results)
        refused = server.summary()["outcomes"]["status 429"]
        assert refused < 400  # without adapting there are seven refusals for each answer
        assert server.summary()["answered"] == 400


def test_good_answers_in_odd_shapes_are_answers(server: FakeServer) -> None:
    for kind in ("padded", "content_parts", "no_usage", "other_provider", "slow"):
        server.script(Fault(kind, times=1))
        told = ask(server, CHAT, [prepare(CHAT)])
        assert told.outcomes == ["answered"]
        assert told.answer.document["choices"][0]["message"]["content"]


def test_what_was_not_asked_for_is_told_as_it_came(server: FakeServer) -> None:
    server.script(Fault("other_quantization", times=1), Fault("other_model", times=1), Fault("other_provider", times=1))
    first, second, third = [ask(server, CHAT, [prepare(CHAT)]).answer.facts for _ in range(3)]
    assert (first.provider, first.quantization) == ("OtherHost", "fp4")
    assert second.model == "other-model"
    assert (third.provider, third.quantization) == ("OtherHost", None)


def test_an_answer_without_usage_is_kept_and_its_cost_unknown(server: FakeServer) -> None:
    server.script(Fault("no_usage", times=1))
    told = ask(server, CHAT, [prepare(CHAT)])
    assert told.attempts[0].billed == "unknown"
    assert told.attempts[0].facts.completion_tokens is None


def test_ids_come_back_through_any_mixture_of_faults(server: FakeServer) -> None:
    kinds: list[Any] = ["reset_before", "reset_middle", "cut", "truncated_json", "not_json", "status", "slow", "padded"]
    server.script(*[Fault(kind, probability=0.05, first_attempts=3) for kind in kinds])
    requests = [prepare(SGLANG, number) for number in range(300)]
    told = ask(server, SGLANG, requests, concurrency=50, retries=8)
    for request, result in zip(requests, told.results, strict=True):
        assert result.document["output_ids"] == expected(request).ids  # type: ignore[union-attr]
    tallies = server.summary()["keys"]
    assert all(tallies[request.key]["answered"] == 1 for request in requests)
    assert len(told.attempts) == server.summary()["requests"] > 300


def test_a_key_is_sent_and_never_shown(server: FakeServer) -> None:
    key = "unusual/key:without-a-known-shape"
    with fake_server(api_key=key) as guarded:
        assert ask(guarded, VLLM, [prepare(VLLM)], key=key).outcomes == ["answered"]
        assert ask(guarded, VLLM, [prepare(VLLM)], key="wrong-key").failure.kind == "unauthorized"
    server.script(Fault("status", times=1, options={"status": 401, "message": f"Incorrect API key: {key}"}))
    told = ask(server, VLLM, [prepare(VLLM)], key=key)
    assert "Incorrect API key: [redacted]" in told.failure.detail
    assert key not in repr(told)
