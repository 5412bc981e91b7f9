"""Connections for httpx that stay quick with thousands of requests in flight, over asyncio and h11.

httpx's own pool looks through all of its connections at each step of each request, so that its cost per request grows
with their number. Here an idle connection is found at once, and how many there are is the caller's affair.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from typing import cast

import h11
import httpx

_OPENING = (
    32  # connections opened at the same time: each TLS handshake holds up the event loop for a millisecond or two
)
_IDLE_SECONDS = 4.0  # servers commonly close idle connections after five
_TURN = 64  # readers that go on in one turn of the event loop
_UNREAD_BYTES = 1 << 20  # above this a connection waits for its reader

Origin = tuple[str, str, int]


class PooledTransport(httpx.AsyncBaseTransport):
    """Keeps connections open and uses the latest one first; opens another where there is none."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._idle: dict[Origin, deque[_Connection]] = defaultdict(deque)
        self._open: set[_Connection] = set()
        self._turns = _Turns()
        self._opening = asyncio.Semaphore(_OPENING)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; the response's body is read as it is asked for."""
        limits = request.extensions.get("timeout", {})
        origin = _origin(request.url)
        connection = self._take(origin) or await self._connect(origin, limits.get("connect"))
        try:
            connection.send(request, await request.aread(), limits.get("read"))
            status, headers = await connection.head()
        except BaseException:
            connection.abort()
            raise
        return httpx.Response(status, headers=headers, stream=_Body(self, origin, connection))

    async def aclose(self) -> None:
        """Close every connection."""
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def put_back(self, origin: Origin, connection: _Connection) -> None:
        """Keep a connection whose response has been read for the next request, if both sides allow that."""
        if connection.reuse():
            self._idle[origin].append(connection)
        else:
            connection.abort()

    def _take(self, origin: Origin) -> _Connection | None:
        idle = self._idle[origin]
        now = time.monotonic()
        while idle and now - idle[0].used > _IDLE_SECONDS:
            idle.popleft().abort()
        while idle:
            connection = idle.pop()
            if not connection.lost:
                return connection
        return None

    async def _connect(self, origin: Origin, seconds: float | None) -> _Connection:
        scheme, host, port = origin
        secure = self._tls() if scheme == "https" else None
        loop = asyncio.get_running_loop()
        async with self._opening:
            if connection := self._take(origin):  # given back while this one waited
                return connection
            try:
                async with asyncio.timeout(seconds):
                    _, protocol = await loop.create_connection(
                        lambda: _Connection(self._open, self._turns), host, port, ssl=secure
                    )
            except TimeoutError as exc:
                raise httpx.ConnectTimeout(f"no connection to {host}:{port} within {seconds:g} seconds") from exc
            except OSError as exc:
                raise httpx.ConnectError(f"no connection to {host}:{port}: {exc}") from exc
        return cast(_Connection, protocol)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = httpx.create_ssl_context()
        return self._context


def _origin(url: httpx.URL) -> Origin:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


class _Connection(asyncio.Protocol):
    """One connection: sends a request, then gives the response part by part."""

    def __init__(self, alive: set[_Connection], turns: _Turns) -> None:
        self._alive, self._turns = alive, turns
        self._http = h11.Connection(h11.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._parts: deque[object] = deque()
        self._incoming: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: httpx.TransportError | None = None
        self._seconds: float | None = None
        self._silent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.lost = False
        self.used = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._alive.add(self)

    def data_received(self, data: bytes) -> None:
        self._incoming.append(data)
        self._unread += len(data)
        if self._unread > _UNREAD_BYTES and self._transport and not self._paused:
            self._transport.pause_reading()
            self._paused = True
        self._wake()

    def eof_received(self) -> None:
        self._incoming.append(b"")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._alive.discard(self)
        if self._timer:
            self._timer.cancel()
        if self._error is None:
            self._error = httpx.ReadError(f"connection lost: {exc or 'closed by the server'}")
        self._wake()

    def send(self, request: httpx.Request, body: bytes, read_seconds: float | None) -> None:
        """Write a request; `read_seconds` is the longest silence that is borne afterwards."""
        assert self._transport
        self._seconds = read_seconds
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        data = [self._http.send(head), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
        self._transport.write(b"".join(part for part in data if part))

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Status and headers of the response."""
        while True:
            part = await self._next()
            if isinstance(part, h11.Response):
                return part.status_code, list(part.headers.raw_items())
            if not isinstance(part, h11.InformationalResponse):
                raise httpx.RemoteProtocolError("connection closed before a response")

    async def data(self) -> bytes | None:
        """The next part of the body; None at its end."""
        part = await self._next()
        if not isinstance(part, h11.Data):
            return None
        return bytes(part.data)

    def reuse(self) -> bool:
        """Make ready for the next request; False if this connection is used up."""
        if (
            self.lost
            or self._parts
            or self._incoming
            or self._http.our_state is not h11.DONE
            or self._http.their_state is not h11.DONE
        ):
            return False
        self._http.start_next_cycle()
        self.used = time.monotonic()
        return True

    def abort(self) -> None:
        """Close at once."""
        self.lost = True
        if self._transport:
            self._transport.abort()

    def _parse(self) -> None:
        incoming, self._incoming = self._incoming, []
        self._unread = 0
        if self._paused and self._transport and not self.lost:
            self._transport.resume_reading()
            self._paused = False
        try:
            for data in incoming:
                self._http.receive_data(data)
            while (part := self._http.next_event()) is not h11.NEED_DATA and part is not h11.PAUSED:
                self._parts.append(part)
                if isinstance(part, h11.ConnectionClosed):
                    self.lost = True
                    break
        except h11.RemoteProtocolError as exc:
            self._error = httpx.RemoteProtocolError(str(exc))
            self.abort()

    async def _next(self) -> object:
        while not self._parts:
            if self._incoming:  # what came before the connection broke counts first
                self._parse()
            elif self._error:
                raise self._error
            else:
                await self._wait()
        return self._parts.popleft()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if self._seconds is not None:
            self._silent_at = loop.time() + self._seconds
            if self._timer and self._timer.when() > self._silent_at:
                self._timer.cancel()
                self._timer = None
            if self._timer is None:
                self._timer = loop.call_later(self._seconds, self._check_silence)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check_silence(self) -> None:
        """One timer serves many waits: it is only set again when it rings too early."""
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._waiter is None or self.lost:
            return
        if loop.time() < self._silent_at:
            self._timer = loop.call_at(self._silent_at, self._check_silence)
        else:
            self._error = httpx.ReadTimeout(f"nothing came for {self._seconds:g} seconds")
            self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._turns.queue(self._waiter)


class _Turns:
    """Lets a few readers go on at a time: a thousand answers that come together must not hold up the event loop."""

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    def queue(self, waiter: asyncio.Future[None]) -> None:
        """Let a reader go on when its turn comes."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._next)
        self._queue.append(waiter)

    def _next(self) -> None:
        for _ in range(min(_TURN, len(self._queue))):
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next)


class _Body(httpx.AsyncByteStream):
    """The body of a response; read to its end, its connection goes back to the pool."""

    def __init__(self, pool: PooledTransport, origin: Origin, connection: _Connection) -> None:
        self._pool, self._origin, self._connection = pool, origin, connection
        self._ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._connection.data()) is not None:
            yield part
        self._ended = True
        self._pool.put_back(self._origin, self._connection)

    async def aclose(self) -> None:
        if not self._ended:
            self._ended = True
            self._connection.abort()
