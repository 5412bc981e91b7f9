"""Sends requests to several endpoints with manners: limits, pauses, retries by class, and an orderly stop.

Takes requests that are ready and gives back raw bodies or failures. Every attempt is told to the caller, whatever
became of it; prompts, budgets and journals are the caller's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

import httpx
from pydantic import SecretStr

from schemas.errors import EngineError
from schemas.serving import ServingSpec
from tasks.artifacts.redaction import redact
from tasks.generate.http.attempt import Limits, Read, read_into
from tasks.generate.http.dialects import Prepared
from tasks.generate.http.errors import Fatal, Retry, judge_exception, judge_status
from tasks.generate.http.facts import Facts
from tasks.generate.http.limiter import Clock, Lane, Lanes, LanesClosed, Sleep
from tasks.generate.http.transport import PooledTransport

_CONNECT_SECONDS = 30.0
_TURN = 64  # attempts that start in one turn of the event loop
_LARGEST_DOUBLING = 30
_MENTION_SECONDS = 5.0  # a pause longer than this is worth a line in the log

_log = logging.getLogger("eyas.generate")

Billed = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class Endpoint:
    """One server: its base URL as its dialect wants it."""

    name: str
    url: str
    weight: float = 1.0
    api_key: SecretStr | None = None


@dataclass(frozen=True)
class Attempt:
    """What became of one attempt, for the ledger."""

    key: str
    endpoint: str
    retry: int  # 0 is the first attempt
    outcome: str  # "answered", "cancelled", or the kind of what went wrong
    detail: str
    status: int | None
    started: float  # seconds since the epoch
    latency: float
    billed: Billed
    facts: Facts


@dataclass(frozen=True)
class RawResponse:
    """A good answer as it came; `document` is its body, parsed."""

    key: str
    body: bytes
    document: dict[str, Any]
    endpoint: str
    status: int
    latency: float
    retries: int
    facts: Facts


@dataclass(frozen=True)
class Failure:
    """Why there is no answer."""

    key: str
    kind: str
    detail: str
    attempts: int
    retryable: bool  # a later run may have more luck; otherwise the row itself is refused
    stops_run: bool = False


class _NotPermitted(Exception):
    """The caller does not want another attempt."""


class Client:
    """Answers of several endpoints; use it with `async with`, in one event loop.

    Args:
        endpoints: who is asked.
        spec: concurrency of the short partition to begin with, retries, waits and time limits.
        report: told of each attempt as it ends.
        permit: asked right before each attempt, with the number of the retry; False gives the request up as
            "no_budget", and after True exactly one attempt is reported.
        transport, clock, sleep, chance: what tests replace.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        spec: ServingSpec,
        report: Callable[[Attempt], None] = lambda attempt: None,
        permit: Callable[[Prepared, int], bool] = lambda prepared, retry: True,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        chance: random.Random | None = None,
    ) -> None:
        if not endpoints:
            raise EngineError("no endpoint to ask: give serving.endpoints")
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._headers = {endpoint.name: _headers(endpoint) for endpoint in endpoints}
        self._urls: dict[tuple[str, str], httpx.URL] = {}
        self._spec, self._report, self._permit = spec, report, permit
        self._clock, self._sleep, self._chance = clock, sleep, chance or random.Random()
        self._lanes = Lanes([Lane(e.name, e.weight) for e in endpoints], spec.short.concurrency, clock, sleep)
        limits = httpx.Timeout(spec.idle_seconds, connect=min(_CONNECT_SECONDS, spec.idle_seconds), pool=None)
        self._limits: Limits = {"timeout": limits.as_dict()}
        self._transports = {e.name: transport or _transport(e.url) for e in endpoints}
        self._running: dict[asyncio.Timeout, Read] = {}
        self._stopping = asyncio.Event()
        self._cancelling = False
        self._started = 0  # attempts in this turn of the event loop
        self._quiet = asyncio.Event()
        self.stopped_by: Fatal | None = None
        for name in ("httpx", "httpcore"):  # a line per request
            logging.getLogger(name).setLevel(logging.WARNING)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.begin_stop()
        self.cancel()
        for transport in self._transports.values():
            await transport.aclose()

    @property
    def lanes(self) -> Sequence[Lane]:
        """Each endpoint's window and requests in flight, to look at."""
        return self._lanes.lanes

    def resize(self, concurrency: int) -> None:
        """Change the most requests in flight, as from one partition to the next."""
        self._lanes.resize(concurrency)

    async def ask(self, prepared: Prepared) -> RawResponse | Failure:
        """Send a request until it is answered or there is no use in trying again."""
        retry = waits = 0
        while True:
            try:
                verdict = await self._once(prepared, retry + waits)
            except LanesClosed:
                return self._stopped(prepared, retry + waits)
            except _NotPermitted:
                return Failure(prepared.key, "no_budget", "the budget allows no further attempt", retry + waits, True)
            if isinstance(verdict, RawResponse):
                return verdict
            if isinstance(verdict, Fatal):
                if verdict.stops_run:
                    self.stopped_by = self.stopped_by or verdict
                    self.begin_stop()
                attempts = retry + waits + 1
                return Failure(
                    prepared.key, verdict.kind, verdict.detail, attempts, verdict.stops_run, verdict.stops_run
                )
            if verdict.free:
                waits += 1
            elif retry >= self._spec.retries:
                return Failure(prepared.key, verdict.kind, verdict.detail, retry + waits + 1, retryable=True)
            else:
                retry += 1
            await self._wait(self._backoff(verdict, retry + waits))

    async def get(self, endpoint: str, path: str) -> dict[str, Any]:
        """A document of an endpoint's own, such as its list of models or what a key has spent.

        Raises:
            EngineError: the endpoint does not give it, after as many retries as any request has.
        """
        verdict: Retry | Fatal = Retry("connection", "not asked")
        http = httpx.AsyncClient(transport=self._transports[endpoint], timeout=_CONNECT_SECONDS)
        for retry in range(self._spec.retries + 1):
            try:
                response = await http.get(self._url(endpoint, path), headers=self._headers[endpoint])
                if response.is_success and isinstance(document := response.json(), dict):
                    return document
                verdict = judge_status(response.status_code, response.headers, response.content, datetime.now(UTC))
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
                verdict = judge_exception(exc)
            if isinstance(verdict, Fatal) or self._stopping.is_set():
                break
            await self._wait(self._backoff(verdict, retry + 1))
        raise EngineError(self._clean(f"{self._endpoints[endpoint].url}{path}: {verdict.detail}"))

    def begin_stop(self) -> None:
        """Start no attempt any more; those in flight go on."""
        self._stopping.set()
        self._lanes.close()

    def cancel(self) -> None:
        """Break off the attempts in flight; each is reported as cancelled."""
        self._cancelling = True
        now = asyncio.get_running_loop().time()
        for limit in list(self._running):
            if not limit.expired():
                limit.reschedule(now)

    async def stop(self, grace: float | None = None) -> None:
        """Start no attempt any more, give those in flight `grace` seconds (the recipe's if None), then cancel them."""
        self.begin_stop()
        try:
            async with asyncio.timeout(self._spec.grace_seconds if grace is None else grace):
                await self._until_quiet()
        except TimeoutError:
            self.cancel()
            await self._until_quiet()

    async def _until_quiet(self) -> None:
        while self._running:
            self._quiet.clear()
            await self._quiet.wait()

    async def _once(self, prepared: Prepared, retry: int) -> RawResponse | Retry | Fatal:
        lane = await self._lanes.acquire()
        try:
            await self._turn()
            if stagger := lane.stagger(self._clock(), self._chance):
                await self._wait(stagger)
            if self._stopping.is_set():
                raise LanesClosed
            if not self._permit(prepared, retry):
                raise _NotPermitted
            return await self._attempt(lane, prepared, retry)
        finally:
            self._lanes.release(lane)

    async def _turn(self) -> None:
        """Wait for the event loop to look at other work, if many requests start together."""
        while self._started >= _TURN:
            await asyncio.sleep(0)
        if not self._started:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._started += 1

    def _end_turn(self) -> None:
        self._started = 0

    async def _attempt(self, lane: Lane, prepared: Prepared, retry: int) -> RawResponse | Retry | Fatal:
        read = Read()
        started, since = time.time(), time.perf_counter()
        limit = asyncio.timeout(self._spec.deadline_seconds)
        self._running[limit] = read
        url, headers = self._url(lane.name, prepared.path), self._headers[lane.name]
        try:
            async with limit:
                await read_into(read, self._transports[lane.name], url, headers, self._limits, prepared)
        except TimeoutError:
            kind = "cancelled" if self._cancelling else "deadline"
            read.begun = True
            if read.document is None:  # else the answer was there just in time
                read.verdict = Retry(kind, f"{kind} after {time.perf_counter() - since:.1f} seconds")
        except asyncio.CancelledError:
            read.begun, read.verdict = True, Retry("cancelled", "the caller gave up")
            raise
        finally:
            del self._running[limit]
            if not self._running:
                self._quiet.set()
            latency = time.perf_counter() - since
            facts = read.facts()
            self._report(self._told(lane, prepared, retry, read, started, latency, facts))
        if read.verdict or read.document is None or read.status is None:
            return self._learned(lane, read)
        lane.succeeded()
        return RawResponse(prepared.key, read.body, read.document, lane.name, read.status, latency, retry, facts)

    def _told(
        self, lane: Lane, prepared: Prepared, retry: int, read: Read, started: float, latency: float, facts: Facts
    ) -> Attempt:
        outcome = read.verdict.kind if read.verdict else "answered"
        detail = self._clean(read.verdict.detail) if read.verdict else ""
        billed = _billed(read, facts)
        return Attempt(prepared.key, lane.name, retry, outcome, detail, read.status, started, latency, billed, facts)

    def _learned(self, lane: Lane, read: Read) -> Retry | Fatal:
        """Tell the lane of what went wrong; returns it, cleaned of secrets."""
        verdict = read.verdict or Retry("connection", "the attempt ended without a response")
        now = self._clock()
        if isinstance(verdict, Fatal):
            return Fatal(verdict.kind, self._clean(verdict.detail), verdict.stops_run)
        if verdict.kind == "connect":
            lane.unreachable(now)
        if verdict.slows:
            lane.refused()
            if verdict.wait:
                if verdict.wait > _MENTION_SECONDS and now >= lane.paused_until:
                    _log.info("%s asks for %.0f seconds of rest: %s", lane.name, verdict.wait, verdict.kind)
                lane.pause(verdict.wait, now)
        return Retry(verdict.kind, self._clean(verdict.detail), verdict.wait, verdict.slows, verdict.free)

    def _stopped(self, prepared: Prepared, attempts: int) -> Failure:
        detail = self.stopped_by.detail if self.stopped_by else "the run is stopping"
        return Failure(prepared.key, "stopped", detail, attempts, retryable=True)

    def _backoff(self, verdict: Retry, retry: int) -> float:
        """Seconds before the next attempt; what the server asked for is never undercut."""
        doubled = self._spec.backoff_seconds * 2 ** min(retry - 1, _LARGEST_DOUBLING)
        ours = min(self._spec.longest_backoff_seconds, doubled) * self._chance.uniform(0.5, 1)
        return ours if verdict.wait is None else verdict.wait + self._chance.uniform(0, ours)

    async def _wait(self, seconds: float) -> None:
        """Sleep, but not past a stop."""
        if self._stopping.is_set():
            return
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((sleeping, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            stopping.cancel()

    def _url(self, endpoint: str, path: str) -> httpx.URL:
        """Parsed once, which costs as much as sending."""
        if (url := self._urls.get((endpoint, path))) is None:
            url = self._urls[endpoint, path] = httpx.URL(self._endpoints[endpoint].url + path)
        return url

    def _clean(self, text: str) -> str:
        """Without the keys, which servers like to repeat in what they complain about."""
        for endpoint in self._endpoints.values():
            if endpoint.api_key and (key := endpoint.api_key.get_secret_value()):
                text = text.replace(key, "[redacted]")
        return redact(text)


def _headers(endpoint: Endpoint) -> httpx.Headers:
    headers = {
        "Host": httpx.URL(endpoint.url).netloc.decode(),
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate",
        "Content-Type": "application/json",
        "User-Agent": "eyas",
    }
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key.get_secret_value()}"
    return httpx.Headers(headers)


def _transport(url: str) -> httpx.AsyncBaseTransport:
    """Connections of our own, or of httpx where the environment wants a proxy for this URL."""
    parsed = httpx.URL(url)
    proxy = urllib.request.getproxies().get(parsed.scheme)
    if proxy and not urllib.request.proxy_bypass(parsed.host):
        return httpx.AsyncHTTPTransport(proxy=proxy, limits=httpx.Limits(max_connections=None))
    return PooledTransport()


def _billed(read: Read, facts: Facts) -> Billed:
    """Whether an attempt costs anything: certain only if it says so, or was refused before any work."""
    if facts.completion_tokens is not None or facts.cost_usd is not None:
        return "yes"
    if not read.begun or (read.status is not None and 400 <= read.status < 500 and read.status != 408):
        return "no"
    return "unknown"
