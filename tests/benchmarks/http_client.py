"""What the client adds to a bare loop over a quick asyncio HTTP client: 20,000 requests, 2,000 in flight.

    python -m tests.benchmarks.http_client [--requests N] [--in-flight N] [--rounds N]

Each way runs in a process of its own against the same fake server without faults. Prints wall time and processor time
(on a machine with other work, only the latter compares), peak memory, and the longest time for which the event loop
looked at nothing else. The aim is at most 1.5 times the bare loop, and no block over 100 ms. The bare loop is over
aiohttp where that is installed, and over httpx in any case: with few in flight, for its own pool does not bear many.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from schemas.serving import PartitionSpec, ServingSpec
from tasks.generate.http.client import Client, Endpoint, RawResponse
from tasks.generate.http.dialects import Manner, Prepared, Question, dialect
from tests.servers.fake import fake_server

HTTPX_IN_FLIGHT = 50
_SPEAKS = dialect("sglang", "chat")
_HEADERS = {"Content-Type": "application/json"}

One = Callable[[Prepared], Awaitable[None]]


@dataclass
class Measured:
    """One way to ask everything, measured."""

    wall: float
    processor: float
    megabytes: float
    blocked: float  # wall seconds
    worked: float  # processor seconds


class Watch:
    """Looks how long the event loop goes without coming back to it."""

    def __init__(self) -> None:
        self.blocked = self.worked = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            wall, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            self.blocked = max(self.blocked, time.perf_counter() - wall)
            self.worked = max(self.worked, time.thread_time() - worked)
            await asyncio.sleep(0.001)


async def drive(one: One, requests: list[Prepared], in_flight: int) -> Measured:
    """Ask everything with so many at a time."""
    watch = Watch()
    watching = asyncio.create_task(watch.run())
    left = iter(requests)

    async def worker() -> None:
        for request in left:
            await one(request)

    wall, processor = time.perf_counter(), time.process_time()
    await asyncio.gather(*[worker() for _ in range(in_flight)])
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    watching.cancel()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(wall, processor, peak, watch.blocked, watch.worked)


async def ours(url: str, requests: list[Prepared], in_flight: int) -> Measured:
    """Our client, with everything that it does."""
    spec = ServingSpec(short=PartitionSpec(concurrency=in_flight, max_tokens=64))
    async with Client([Endpoint("fake", url)], spec) as client:

        async def one(request: Prepared) -> None:
            result = await client.ask(request)
            assert isinstance(result, RawResponse), result

        return await drive(one, requests, in_flight)


async def bare_httpx(url: str, requests: list[Prepared], in_flight: int) -> Measured:
    """A loop over httpx as it comes."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def one(request: Prepared) -> None:
            response = await client.post(url + request.path, content=request.body, headers=_HEADERS)
            json.loads(response.content)

        return await drive(one, requests, min(in_flight, HTTPX_IN_FLIGHT))


async def bare_aiohttp(url: str, requests: list[Prepared], in_flight: int) -> Measured:
    """A loop over aiohttp, the quickest of those that are common."""
    aiohttp = importlib.import_module("aiohttp")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(request: Prepared) -> None:
            async with session.post(url + request.path, data=request.body, headers=_HEADERS) as response:
                json.loads(await response.read())

        return await drive(one, requests, in_flight)


WAYS = {"ours": ours, "aiohttp": bare_aiohttp, "httpx": bare_httpx}


def measure(way: str, count: int, in_flight: int) -> Measured:
    """One way against a server of its own."""
    requests = [
        _SPEAKS.prepare(str(number), Question([], None, [number, *range(60)]), Manner("m", 0.7, 1.0), 64, 124)
        for number in range(count)
    ]
    with fake_server() as server:
        measured = asyncio.run(WAYS[way](server.url, requests, in_flight))
        answered = server.summary()["answered"]
    assert answered == count, f"{answered} of {count} requests were answered"
    return measured


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    said = parser.parse_args()
    ways = ["ours", "aiohttp"] if importlib.util.find_spec("aiohttp") else ["ours"]
    found: dict[str, list[Measured]] = {way: [] for way in [*ways, "httpx"]}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # so that peaks are of one way only
        for _ in range(said.rounds):
            for way in ways:
                found[way].append(pool.apply(measure, (way, said.requests, said.in_flight)))
        found["httpx"].append(pool.apply(measure, ("httpx", said.requests // 4, said.in_flight)))
    for way, runs in found.items():
        count = said.requests // 4 if way == "httpx" else said.requests
        wall, processor = (statistics.median(getattr(run, name) for run in runs) for name in ("wall", "processor"))
        print(
            f"{way}: {count:,} requests, {wall:.2f} s ({count / wall:,.0f} per second), "
            f"{processor / count * 1e6:.0f} us of processor each, {max(run.megabytes for run in runs):.0f} MB, "
            f"loop held {max(run.blocked for run in runs) * 1e3:.0f} ms "
            f"({max(run.worked for run in runs) * 1e3:.0f} ms of it at work)"
        )
    for bare in [way for way in found if way != "ours"]:
        scale = 4 if bare == "httpx" else 1
        ratios = [
            statistics.median(getattr(run, name) for run in found["ours"])
            / (scale * statistics.median(getattr(run, name) for run in found[bare]))
            for name in ("wall", "processor")
        ]
        print(
            f"ours against a bare loop over {bare}: {ratios[0]:.2f} of its wall time, {ratios[1]:.2f} of its processor"
        )


if __name__ == "__main__":
    main()
