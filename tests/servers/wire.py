"""HTTP/1.1 as a server that tests use speaks it, and all the ways in which it can break off an answer.

Written over asyncio.Protocol because a client that keeps thousands of requests in flight must not wait for its server.
Knows nothing of what is asked; each connection has one request at a time.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

JSON = "application/json"
SSE = "text/event-stream"
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


@dataclass(frozen=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes

    def document(self) -> dict[str, Any]:
        """The body as JSON."""
        return json.loads(self.body)


# Answers at once and returns None, or returns what is to be awaited (and cancelled if the client goes away).
Handler = Callable[[Request, "Connection"], Coroutine[Any, Any, None] | None]


class Connection(asyncio.Protocol):
    """Reads requests off one connection and writes what the handler says."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._task:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        while self._task is None and not self.lost and (request := self._take()):
            if work := self._handler(request, self):
                self._task = asyncio.get_running_loop().create_task(work)
                self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()):
            raise error
        self._next()

    def _take(self) -> Request | None:
        """The first whole request in the buffer, removed from it."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        stop = end + 4 + int(headers.get("content-length", 0))
        if len(self._buffer) < stop:
            return None
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        return Request(method, unquote(parts.path), dict(parse_qsl(parts.query)), headers, body)

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self._transport and not self.lost:
            self._transport.write(data)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, kind: str = JSON) -> None:
        """Send a whole response with its length."""
        self.write(head(status, {"Content-Length": str(len(body)), **(headers or {})}, kind) + body)

    def begin(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        """Send headers and a first part of the body, whatever length the headers promise."""
        self.write(head(status, headers, JSON) + data)

    def begin_chunks(self, status: int, headers: dict[str, str] | None = None, kind: str = SSE) -> None:
        """Start a response of unknown length."""
        self.write(head(status, {"Transfer-Encoding": "chunked", **(headers or {})}, kind))

    def chunk(self, data: bytes) -> None:
        """Send a part of it."""
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_chunks(self) -> None:
        """End it."""
        self.write(b"0\r\n\r\n")

    def close(self) -> None:
        """Close the connection in order, whatever was promised."""
        if self._transport:
            self._transport.close()

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        if self._transport and not self.lost:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


def head(status: int, headers: dict[str, str], kind: str) -> bytes:
    """The status line and headers of a response."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\nContent-Type: {kind}\r\n{lines}\r\n".encode(
        "latin-1"
    )
