"""What the tests of the client share: a recipe without real waits, requests, and what became of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from schemas.serving import PartitionSpec, ServingSpec
from tasks.generate.http.client import Attempt, Client, Endpoint, Failure, RawResponse
from tasks.generate.http.dialects import Dialect, Manner, Prepared, Question, dialect
from tests.servers.answers import Answer, Vocabulary, answer_to, key_of
from tests.servers.fake import FakeServer
from tests.servers.routes import MODEL

DIALECTS = {
    "sglang": dialect("sglang", "chat"),
    "vllm chat": dialect("vllm", "chat"),
    "vllm completions": dialect("vllm", "completions"),
    "openai": dialect("openai", "chat"),
    "openrouter": dialect("openrouter", "chat"),
}


def spec(**changes: Any) -> ServingSpec:
    """Serving as a recipe says it, with time limits that a loaded machine keeps."""
    short = PartitionSpec(concurrency=changes.pop("concurrency", 8), max_tokens=64)
    return ServingSpec(**{"short": short, "retries": 3, "backoff_seconds": 0.01} | changes)


def prepare(speaks: Dialect, number: int = 0, stream: bool = False, max_tokens: int = 64) -> Prepared:
    """A request; its key is that by which the fake server counts it."""
    question = Question([{"role": "user", "content": f"Question {number}?"}], None, [number, 7, 8, 9])
    prepared = speaks.prepare("", question, Manner(MODEL, 0.7, 1.0, stream=stream), max_tokens, 100)
    key = key_of(json.loads(prepared.body))
    return Prepared(key, prepared.path, prepared.body, prepared.tokens, prepared.collector)


def expected(prepared: Prepared, reasoning: bool = False) -> Answer:
    """What the fake server answers."""
    return answer_to(json.loads(prepared.body), Vocabulary(), reasoning)


@dataclass
class Waits:
    """A clock that only moves when somebody sleeps, and keeps count of that."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        """Seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Pass at once."""
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@dataclass
class Told:
    """Results in the order of the requests, and every attempt that was reported."""

    results: list[RawResponse | Failure]
    attempts: list[Attempt]
    waits: list[float]

    @property
    def answer(self) -> RawResponse:
        """The only answer."""
        (result,) = self.results
        assert isinstance(result, RawResponse), result
        return result

    @property
    def failure(self) -> Failure:
        """The only failure."""
        (result,) = self.results
        assert isinstance(result, Failure), result
        return result

    @property
    def outcomes(self) -> list[str]:
        """Of the attempts, as they ended."""
        return [attempt.outcome for attempt in self.attempts]


def endpoint(server: FakeServer, speaks: Dialect, key: str = "", **changes: Any) -> Endpoint:
    """A server as the client sees it."""
    root = speaks.root(server.openrouter if speaks.engine == "openrouter" else server.url)
    return Endpoint(f"server-{server.port}", root, api_key=SecretStr(key) if key else None, **changes)


def ask(server: FakeServer, speaks: Dialect, requests: Sequence[Prepared], key: str = "", **changes: Any) -> Told:
    """Ask everything at once, waiting in no real time between attempts."""
    attempts: list[Attempt] = []
    waits = Waits()

    async def run() -> list[RawResponse | Failure]:
        where = [endpoint(server, speaks, key)]
        async with Client(where, spec(**changes), attempts.append, clock=waits.clock, sleep=waits.sleep) as client:
            return await asyncio.gather(*[client.ask(request) for request in requests])

    return Told(asyncio.run(run()), attempts, waits.slept)
