"""One attempt at one request: sent, read within its time limits, and judged. Nothing is tried again here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from tasks.generate.http.dialects import Prepared
from tasks.generate.http.errors import Fatal, Retry, Verdict, judge_document, judge_exception, judge_status
from tasks.generate.http.facts import Facts, facts_of, facts_of_part
from tasks.generate.http.stream import Collector, EventReader, StreamBroken

MAX_BODY = 4 << 20  # bytes; a long answer with its ids has a quarter of one; parsing more holds up the event loop

Limits = dict[str, dict[str, float | None]]  # httpx's time limits, as its requests carry them


@dataclass
class Read:
    """What an attempt has brought so far; whole only if `document` is there and `verdict` is not."""

    status: int | None = None
    body: bytes = b""
    document: dict[str, Any] | None = None
    verdict: Verdict | None = None
    collector: Collector | None = None  # of a stream that has begun
    begun: bool = False  # a connection was there, so that the server may have taken the request

    def facts(self) -> Facts:
        """What is known of the answer, however much of it came."""
        if self.document is not None:
            return facts_of(self.document)
        if self.collector:
            try:
                return facts_of(self.collector.so_far())
            except StreamBroken:
                return Facts()
        return facts_of_part(self.body) if self.status == httpx.codes.OK else Facts()


async def read_into(
    read: Read,
    transport: httpx.AsyncBaseTransport,
    url: httpx.URL,
    headers: httpx.Headers,
    limits: Limits,
    prepared: Prepared,
) -> None:
    """Send a request and read its answer into a record that is there even if this is cancelled.

    Whatever else goes wrong is the record's verdict.
    """
    try:
        # straight to the transport: cookies, redirects and sign-in would cost as much as all the rest
        request = httpx.Request("POST", url, headers=headers, content=prepared.body, extensions=limits)
        response = await transport.handle_async_request(request)
        read.status, read.begun = response.status_code, True
        try:
            await _read(read, response, prepared)
        finally:
            await response.aclose()
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as exc:
        read.verdict = judge_exception(exc)
        read.begun = read.begun or (isinstance(read.verdict, Retry) and read.verdict.kind != "connect")
    except StreamBroken as exc:
        read.verdict = Retry("bad_stream", str(exc))


async def _read(read: Read, response: httpx.Response, prepared: Prepared) -> None:
    if not response.is_success:
        read.body = await _whole(read, response)
        read.verdict = judge_status(response.status_code, response.headers, read.body, datetime.now(UTC))
    elif prepared.collector and response.headers.get("content-type", "").startswith("text/event-stream"):
        await _read_events(read, response, prepared.collector())
        _judge(read, response.headers)
    else:
        read.body = await _whole(read, response)
        if read.verdict:
            return
        try:
            # servers may send white space before the JSON, to keep the connection alive
            read.document = json.loads(read.body)
        except ValueError as exc:
            read.verdict = Retry("bad_body", f"the body is not JSON: {exc}")
            return
        _judge(read, response.headers)


async def _whole(read: Read, response: httpx.Response) -> bytes:
    parts, size = [], 0
    async for part in _parts(response):
        parts.append(part)
        size += len(part)
        if size <= 4096:
            read.body = b"".join(parts)  # its beginning has the generation's id, should the rest not come
        if size > MAX_BODY:
            read.verdict = Fatal("too_large", f"the body has more than {MAX_BODY:,} bytes; ask for less in extra_body")
            break
    return b"".join(parts)


def _parts(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it comes, decompressed if need be."""
    if "content-encoding" in response.headers or not isinstance(response.stream, httpx.AsyncByteStream):
        return response.aiter_bytes()
    return aiter(response.stream)


async def _read_events(read: Read, response: httpx.Response, collector: Collector) -> None:
    read.collector = collector
    reader = EventReader()
    async for part in _parts(response):
        for event in reader.feed(part):
            collector.add(event)
        await asyncio.sleep(0)  # a burst of events must not keep others waiting
    for event in reader.close():
        collector.add(event)
    read.document = collector.body()
    read.body = json.dumps(read.document, ensure_ascii=False, separators=(",", ":")).encode()


def _judge(read: Read, headers: Mapping[str, str]) -> None:
    read.verdict = judge_document(read.document, headers, datetime.now(UTC))
    if not isinstance(read.document, dict):
        read.document = None
