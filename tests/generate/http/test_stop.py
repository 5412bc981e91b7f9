"""Stopping: nothing new is sent, what arrives in time is kept, and each attempt is accounted for."""

from __future__ import annotations

import asyncio

import pytest

from tasks.generate.http.client import Attempt, Client, Failure, RawResponse
from tests.generate.http.asking import DIALECTS, endpoint, prepare, spec
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

SPEAKS = DIALECTS["openrouter"]


async def _in_flight(client: Client, wanted: int) -> None:
    while sum(lane.in_flight for lane in client.lanes) < wanted:
        await asyncio.sleep(0.005)


def _stopped(server: FakeServer, grace: float) -> tuple[list[RawResponse | Failure], list[Attempt]]:
    attempts: list[Attempt] = []

    async def run() -> list[RawResponse | Failure]:
        async with Client([endpoint(server, SPEAKS)], spec(concurrency=5), attempts.append) as client:
            asking = [asyncio.create_task(client.ask(prepare(SPEAKS, number))) for number in range(20)]
            await _in_flight(client, 5)
            while not await asyncio.to_thread(lambda: server.summary()["requests"]):
                await asyncio.sleep(0.01)
            await client.stop(grace)
            return await asyncio.gather(*asking)

    return asyncio.run(run()), attempts


def test_answers_that_come_in_time_are_kept_and_nothing_new_is_asked() -> None:
    with fake_server(latency=0.3) as server:
        results, attempts = _stopped(server, grace=60)
        answered = [result for result in results if isinstance(result, RawResponse)]
        assert 5 <= len(answered) < 20
        assert {result.kind for result in results if isinstance(result, Failure)} == {"stopped"}
        assert [attempt.outcome for attempt in attempts] == ["answered"] * len(answered)
        assert server.summary()["requests"] == len(answered)


def test_those_that_do_not_are_cancelled_and_may_have_been_billed() -> None:
    with fake_server(latency=600) as server:
        results, attempts = _stopped(server, grace=0)
        assert all(isinstance(result, Failure) for result in results)
        assert [(attempt.outcome, attempt.billed) for attempt in attempts] == [("cancelled", "unknown")] * 5
        assert {result.kind for result in results} == {"stopped"}  # type: ignore[union-attr]


def test_a_caller_that_gives_up_leaves_its_place_and_an_account_of_it(server: FakeServer) -> None:
    server.script(Fault("stall_before", times=1))
    attempts: list[Attempt] = []

    async def run() -> None:
        async with Client([endpoint(server, SPEAKS)], spec(concurrency=1), attempts.append) as client:
            first = asyncio.create_task(client.ask(prepare(SPEAKS)))
            await _in_flight(client, 1)
            await asyncio.sleep(0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert isinstance(await client.ask(prepare(SPEAKS, 1)), RawResponse)

    asyncio.run(run())
    assert [attempt.outcome for attempt in attempts] == ["cancelled", "answered"]


def test_a_wait_between_attempts_ends_with_the_run(server: FakeServer) -> None:
    server.script(Fault("status", probability=1, options={"status": 503, "retry_after": "3600"}))

    async def run() -> Failure | RawResponse:
        refused = asyncio.Event()
        async with Client([endpoint(server, SPEAKS)], spec(), lambda attempt: refused.set()) as client:
            asking = asyncio.create_task(client.ask(prepare(SPEAKS)))
            await refused.wait()
            await client.stop()
            return await asking

    result = asyncio.run(run())
    assert isinstance(result, Failure)
    assert (result.kind, result.attempts, result.retryable) == ("stopped", 1, True)


def test_an_attempt_that_the_budget_does_not_permit_is_not_made(server: FakeServer) -> None:
    server.script(Fault("status", probability=1, options={"status": 500}))
    asked: list[tuple[str, int]] = []
    attempts: list[Attempt] = []

    async def run() -> Failure | RawResponse:
        def permit(prepared: object, retry: int) -> bool:
            asked.append((prepared.key, retry))  # type: ignore[attr-defined]
            return retry < 2

        async with Client([endpoint(server, SPEAKS)], spec(), attempts.append, permit) as client:
            return await client.ask(prepare(SPEAKS))

    result = asyncio.run(run())
    assert isinstance(result, Failure)
    assert (result.kind, result.retryable) == ("no_budget", True)
    assert asked == [(prepare(SPEAKS).key, retry) for retry in range(3)]
    assert len(attempts) == server.summary()["requests"] == 2
