"""Endpoints get as much to do as they take, and rest when they ask for it."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.generate.http.limiter import Lane, Lanes, LanesClosed
from tests.generate.http.asking import Waits


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 3000))
def test_the_window_stays_between_one_and_the_ceiling(refusals: list[bool], ceiling: int) -> None:
    lane = Lane("a", 1, ceiling, float(ceiling))
    for refusal in refusals:
        lane.refused() if refusal else lane.succeeded()
        assert 1 <= lane.window <= ceiling


def test_a_window_full_of_refusals_halves_it() -> None:
    lane = Lane("a", 1, 2000, 2000.0)
    for _ in range(2000):
        lane.refused()
    assert lane.window == 1000


def test_successes_bring_the_window_back_by_a_share_of_the_ceiling() -> None:
    lane = Lane("a", 1, 2000, 1000.0)
    for _ in range(1000):
        lane.succeeded()
    assert 1030 < lane.window < 1045


def test_rare_refusals_cost_little() -> None:
    lane, chance = Lane("a", 1, 2000, 2000.0), random.Random(0)
    for _ in range(20_000):
        lane.refused() if chance.random() < 0.05 else lane.succeeded()
    assert lane.window > 1200


def test_a_pause_is_only_ever_made_longer_and_workers_come_back_apart() -> None:
    lane = Lane("a", 1, 10, 10.0)
    lane.pause(30, now=100)
    lane.pause(5, now=101)
    assert not lane.has_room(129.9)
    assert lane.has_room(130)
    waits = [lane.stagger(130, random.Random(seed)) for seed in range(20)]
    assert len(set(waits)) == 20
    assert all(0 <= wait <= 7.5 for wait in waits)
    assert lane.stagger(138, random.Random(0)) == 0


def test_requests_that_fail_together_count_as_one_failure_to_reach() -> None:
    lane = Lane("a", 1, 10, 10.0)
    for _ in range(10):
        lane.unreachable(now=0)
    assert lane.paused_until == 0.5
    lane.unreachable(now=1)
    assert lane.paused_until == 2
    lane.succeeded()
    lane.unreachable(now=3)
    assert lane.paused_until == 3.5


def test_places_are_shared_by_weight_and_given_in_order() -> None:
    async def run() -> None:
        lanes = Lanes([Lane("a", 3), Lane("b", 1)], 8)
        assert [lane.ceiling for lane in lanes.lanes] == [6, 2]
        taken = [await lanes.acquire() for _ in range(8)]
        assert sorted(lane.name for lane in taken) == ["a"] * 6 + ["b"] * 2
        order: list[int] = []

        async def wait(number: int) -> None:
            await lanes.acquire()
            order.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert not order
        tasks[1].cancel()
        for lane in taken[:3]:
            lanes.release(lane)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 2, 3]
        assert sum(lane.in_flight for lane in lanes.lanes) == 8

    asyncio.run(run())


def test_a_paused_endpoint_starts_again_by_itself() -> None:
    async def run() -> None:
        waits = Waits()
        lanes = Lanes([Lane("a", 1), Lane("b", 1)], 4, waits.clock, waits.sleep)
        lanes.lanes[0].pause(60, waits.now)
        lanes.lanes[1].pause(5, waits.now)
        assert (await lanes.acquire()).name == "b"
        assert waits.now == 5

    asyncio.run(run())


def test_a_shorter_pause_that_comes_later_is_not_overslept() -> None:
    async def run() -> None:
        lanes = Lanes([Lane("a", 1), Lane("b", 1)], 2)
        await lanes.acquire()
        await lanes.acquire()
        now = asyncio.get_running_loop().time()
        lanes.lanes[0].pause(3600, now)
        waiter = asyncio.create_task(lanes.acquire())
        await asyncio.sleep(0)
        lanes.lanes[1].pause(0.01, now)
        lanes.release(lanes.lanes[1])
        assert (await waiter).name == "b"

    asyncio.run(run())


def test_closing_sends_everybody_away() -> None:
    async def run() -> None:
        lanes = Lanes([Lane("a", 1)], 1)
        await lanes.acquire()
        waiters = [asyncio.create_task(lanes.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        lanes.close()
        assert [type(said) for said in await asyncio.gather(*waiters, return_exceptions=True)] == [LanesClosed] * 3
        with pytest.raises(LanesClosed):
            await lanes.acquire()

    asyncio.run(run())


def test_more_room_lets_those_in_who_wait() -> None:
    async def run() -> None:
        lanes = Lanes([Lane("a", 1)], 1)
        await lanes.acquire()
        waiter = asyncio.create_task(lanes.acquire())
        await asyncio.sleep(0)
        lanes.resize(2)
        await waiter

    asyncio.run(run())
