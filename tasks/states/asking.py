"""Requests to a server that gives states: a few at a time, answers in order, failures named. Knows no engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import httpx

from schemas.errors import EngineError

_TRIES = 3
_WAIT_SECONDS = 1.0
_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 1800.0  # a long prefill behind a full queue
_SHOWN = 300  # characters of an answer in a message

Item = TypeVar("Item")
Result = TypeVar("Result")


class StateServer:
    """One server; may be used from several threads."""

    def __init__(self, url: str, connections: int) -> None:
        self.url = url
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        self._client = httpx.Client(base_url=url, limits=limits, timeout=timeout, trust_env=False)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """POST a body, or GET without one; asks again when the server cannot be reached or is too busy.

        Raises:
            EngineError: the server does not answer, or refuses.
        """
        problem = ""
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._client.post(path, json=body) if body is not None else self._client.get(path)
            except httpx.TransportError as exc:
                problem = f"does not answer: {exc or type(exc).__name__}"
            else:
                if answer.is_success:
                    return self._parsed(answer)
                problem = f"refused {path} with {answer.status_code}: {answer.text[:_SHOWN]}"
                if answer.status_code < 500 and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    break
            if attempt < _TRIES:
                time.sleep(_WAIT_SECONDS * attempt)
        raise EngineError(f"the server {self.url} {problem}. Look at its log, and start again: nothing is lost")

    def _parsed(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError as exc:
            raise EngineError(f"the server {self.url} sent no JSON: {answer.text[:_SHOWN]}") from exc
        if not isinstance(content, dict):
            raise EngineError(f"the server {self.url} sent no JSON object: {answer.text[:_SHOWN]}")
        return content


def in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """What a function gives for each item, in their order, `workers` calls at a time and no further ahead."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, "states")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
