"""How many requests each endpoint has in flight: fewer after refusals, more after successes, none while it rests.

Each success adds a little to an endpoint's window and each refusal takes half a request from it, so that a window full
of refusals halves it while a rare one hardly shows. A pause holds for every worker of the endpoint.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

_STEP = 0.02  # of the ceiling, gained per window of successes
_LOSS = 0.5  # requests, lost per refusal
_SPREAD = 0.25  # of a pause: the time over which workers come back after it
_LEAST_SPREAD = 0.05
_UNREACHABLE_SECONDS = 0.5  # first pause of an endpoint that cannot be reached; doubles
_LONGEST_UNREACHABLE_SECONDS = 30.0

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


class LanesClosed(Exception):
    """No request may start any more."""


@dataclass(eq=False)
class Lane:
    """One endpoint's share of the requests in flight."""

    name: str
    weight: float
    ceiling: int = 1
    window: float = 1.0
    in_flight: int = 0
    paused_until: float = 0.0
    calm_at: float = 0.0
    failures: int = 0

    def has_room(self, now: float) -> bool:
        """Whether a request may start."""
        return now >= self.paused_until and self.in_flight < int(self.window)

    def succeeded(self) -> None:
        """A request was answered."""
        self.failures = 0
        self.window = min(float(self.ceiling), self.window + max(1.0, _STEP * self.ceiling) / self.window)

    def refused(self) -> None:
        """A request was refused because there are too many."""
        self.window = max(1.0, self.window - _LOSS)

    def pause(self, seconds: float, now: float) -> None:
        """Start nothing for so long, and come back little by little."""
        if now + seconds > self.paused_until:
            self.paused_until = now + seconds
            self.calm_at = self.paused_until + max(_LEAST_SPREAD, _SPREAD * seconds)

    def unreachable(self, now: float) -> None:
        """No connection could be made: leave the work to others for a while, longer each time."""
        if now >= self.paused_until:  # one pause for all the requests that failed together
            self.pause(min(_LONGEST_UNREACHABLE_SECONDS, _UNREACHABLE_SECONDS * 2**self.failures), now)
            self.failures = min(self.failures + 1, 16)

    def stagger(self, now: float, chance: random.Random) -> float:
        """Seconds for one worker to wait on top, so that not all come back at once after a pause."""
        return chance.uniform(0, self.calm_at - now) if now < self.calm_at else 0.0


class Lanes:
    """Hands out the endpoints' free places, in the order in which they were asked for."""

    def __init__(
        self, lanes: Sequence[Lane], concurrency: int, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.lanes = lanes
        self._clock, self._sleep = clock, sleep
        self._waiting: deque[asyncio.Future[Lane]] = deque()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0.0
        self._closed = False
        self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """Share out this many requests in flight by weight; the windows start at their ceilings."""
        total = sum(lane.weight for lane in self.lanes)
        for lane in self.lanes:
            lane.ceiling = max(1, round(concurrency * lane.weight / total))
            lane.window = float(lane.ceiling)
        self._admit()

    async def acquire(self) -> Lane:
        """A place at the endpoint that has the least to do for its weight; to be given back with `release`.

        Raises:
            LanesClosed: nothing may start any more.
        """
        if self._closed:
            raise LanesClosed
        if not self._waiting and (lane := self._roomiest()):
            lane.in_flight += 1
            return lane
        place: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._admit()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and not place.exception():
                self.release(place.result())
            raise

    def release(self, lane: Lane) -> None:
        """Give a place back."""
        lane.in_flight -= 1
        self._admit()

    def close(self) -> None:
        """Start nothing any more; whoever waits is told so."""
        self._closed = True
        for place in self._waiting:
            if not place.done():
                place.set_exception(LanesClosed())
        self._waiting.clear()
        if self._alarm:
            self._alarm.cancel()

    def _admit(self) -> None:
        while self._waiting:
            if self._waiting[0].done():  # cancelled while it waited
                self._waiting.popleft()
            elif lane := self._roomiest():
                lane.in_flight += 1
                self._waiting.popleft().set_result(lane)
            else:
                return self._set_alarm()
        return None

    def _roomiest(self) -> Lane | None:
        now = self._clock()
        free = [lane for lane in self.lanes if lane.has_room(now)]
        return min(free, key=lambda lane: (lane.in_flight + 1) / lane.weight) if free else None

    def _set_alarm(self) -> None:
        """Look again when the first pause ends, for no request may end before."""
        now = self._clock()
        ends = [lane.paused_until for lane in self.lanes if lane.paused_until > now]
        if not ends or (self._alarm and self._alarm_at <= min(ends)):
            return
        if self._alarm:
            self._alarm.cancel()
        self._alarm_at = min(ends)
        self._alarm = asyncio.get_running_loop().create_task(self._look_again(self._alarm_at - now))

    async def _look_again(self, seconds: float) -> None:
        await self._sleep(seconds)
        self._alarm = None
        self._admit()
