"""Connections are kept, given up when they break, and give bodies of any size and encoding."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from tasks.generate.http.attempt import MAX_BODY
from tasks.generate.http.client import Attempt, Client, Endpoint, Failure
from tasks.generate.http.transport import PooledTransport
from tests.generate.http.asking import DIALECTS, prepare, spec
from tests.servers.wire import Connection, Request

Handle = Callable[[Request, Connection], None]


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[tuple[httpx.AsyncClient, str, list[Connection]]]:
    """A client over the transport, a server's address, and the connections that it got."""
    made: list[Connection] = []

    def accept() -> Connection:
        made.append(Connection(handle))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(transport=PooledTransport(), timeout=60) as client:
            yield client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", made
    finally:
        server.close()


def echo(request: Request, connection: Connection) -> None:
    connection.reply(200, request.body)


def test_one_connection_serves_requests_that_follow_each_other() -> None:
    async def run() -> None:
        async with serving(echo) as (client, url, made):
            for number in range(5):
                assert (await client.post(url, content=str(number))).text == str(number)
            assert len(made) == 1
            together = await asyncio.gather(*[client.post(url, content=str(number)) for number in range(50)])
            assert [response.text for response in together] == [str(number) for number in range(50)]
            assert len(made) <= 50

    asyncio.run(run())


def test_large_bodies_pass_both_ways_however_slowly_they_are_read() -> None:
    body = bytes(range(256)) * 40_000  # ten times what a connection holds unread

    async def run() -> None:
        async with serving(echo) as (client, url, _), client.stream("POST", url, content=body) as response:
            got = b""
            async for part in response.aiter_raw():
                got += part
                await asyncio.sleep(0)
            assert got == body

    asyncio.run(run())


def test_compressed_and_chunked_bodies_are_read() -> None:
    def handle(request: Request, connection: Connection) -> None:
        connection.begin_chunks(200, {"Content-Encoding": "gzip"})
        for byte in gzip.compress(b"said" * 1000):
            connection.chunk(bytes([byte]))
        connection.end_chunks()

    async def run() -> None:
        async with serving(handle) as (client, url, made):
            assert (await client.get(url)).content == b"said" * 1000
            assert (await client.get(url)).content == b"said" * 1000
            assert len(made) == 1

    asyncio.run(run())


def test_a_body_without_length_ends_with_its_connection() -> None:
    def handle(request: Request, connection: Connection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        connection.close()

    async def run() -> None:
        async with serving(handle) as (client, url, made):
            assert (await client.get(url)).text == "all of it"
            assert (await client.get(url)).text == "all of it"
            assert len(made) == 2

    asyncio.run(run())


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def run() -> None:
        async with serving(echo) as (client, url, made):
            await client.post(url, content="a")
            made[0].close()
            await asyncio.sleep(0.05)
            assert (await client.post(url, content="b")).text == "b"
            assert len(made) == 2

    asyncio.run(run())


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b""])
def test_what_is_no_response_is_an_error_of_httpx(raw: bytes) -> None:
    def handle(request: Request, connection: Connection) -> None:
        connection.write(raw)
        connection.close()

    async def run() -> None:
        async with serving(handle) as (client, url, _):
            with pytest.raises(httpx.TransportError):
                await client.get(url)

    asyncio.run(run())


def test_a_body_that_is_left_unread_gives_its_connection_up() -> None:
    async def run() -> None:
        async with serving(echo) as (client, url, made):
            async with client.stream("POST", url, content=b"x" * 3_000_000) as response:
                assert response.status_code == 200
            assert (await client.post(url, content="next")).text == "next"
            assert len(made) == 2

    asyncio.run(run())


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    async def run() -> None:
        async with serving(echo) as (_, url, _):
            pass
        async with httpx.AsyncClient(transport=PooledTransport()) as client:
            with pytest.raises(httpx.ConnectError, match=r"no connection to 127\.0\.0\.1"):
                await client.get(url)

    asyncio.run(run())


def test_a_body_too_large_to_parse_in_time_is_refused_and_not_paid_for_again() -> None:
    def handle(request: Request, connection: Connection) -> None:
        connection.reply(200, b" " * (MAX_BODY + 1))

    attempts: list[Attempt] = []

    async def run() -> None:
        async with serving(handle) as (_, url, _), Client([Endpoint("a", url)], spec(), attempts.append) as client:
            result = await client.ask(prepare(DIALECTS["sglang"]))
            assert isinstance(result, Failure)
            assert (result.kind, result.stops_run) == ("too_large", False)

    asyncio.run(run())
    assert [(attempt.outcome, attempt.billed) for attempt in attempts] == [("too_large", "unknown")]
