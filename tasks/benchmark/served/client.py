"""Asks a server over HTTP, one thread per request in flight; times are those of the client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from schemas.errors import EngineError
from tasks.benchmark.served.dialects import Dialect, Heard
from tasks.benchmark.served.spoken import Spoken

_SHOWN = 300  # characters of a body in an error
_CONNECT_SECONDS = 30


class Client:
    """One server. Safe to use from many threads.

    Args:
        url: its base URL.
        dialect: its API.
        model: the model's name there.
        idle_seconds: longest silence.
        connections: most requests in flight.
    """

    def __init__(self, url: str, dialect: Dialect, model: str, idle_seconds: float, connections: int) -> None:
        self.url, self.dialect, self.model = url.rstrip("/").removesuffix("/v1"), dialect, model
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(idle_seconds, connect=_CONNECT_SECONDS),
            # a server that closes an idle connection while we take it up again would look as if it had died
            limits=httpx.Limits(max_connections=connections + 2, max_keepalive_connections=0),
            trust_env=False,
        )

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def ask(self, ids: tuple[int, ...], temperature: float, max_tokens: int, steps: int) -> Spoken:
        """The continuation of ids.

        Args:
            ids: the prompt.
            temperature: 0 is greedy.
            max_tokens: most new tokens.
            steps: drafted tokens a time, 0 without a draft.

        Raises:
            EngineError: the server refuses, breaks off, or says something that is no answer.
        """
        heard, first, last = Heard(), 0.0, 0.0
        body = self.dialect.body(self.model, ids, temperature, max_tokens)
        started = time.perf_counter()
        with self._talking(), self._http.stream("POST", self.dialect.path, json=body) as response:
            self._require_ok(response)
            for event in _events(response):
                self._refuse_error(event)
                before = len(heard.ids)
                self.dialect.hear(event, heard)
                if len(heard.ids) > before:
                    last = time.perf_counter() - started
                    first = first or last
            if heard.finish not in ("stop", "length") or not heard.ids:
                raise EngineError(
                    f"the {self.dialect.name} server at {self.url} broke off after {len(heard.ids)} tokens "
                    f"(finish: {heard.finish or 'none'})"
                )
            counts = self.dialect.counts(heard, steps) if steps else None
        return Spoken(tuple(heard.ids), heard.finish, counts, first, last)

    def get_text(self, path: str) -> str:
        """A page of the server.

        Raises:
            EngineError: it has none.
        """
        with self._talking():
            response = self._http.get(path)
            self._require_ok(response)
            return response.text

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to a small request.

        Raises:
            EngineError: the server refuses.
        """
        with self._talking():
            response = self._http.post(path, json=body)
            self._require_ok(response)
            return response.json()

    def _require_ok(self, response: httpx.Response) -> None:
        if not response.is_success:
            said = response.read().decode(errors="replace")[:_SHOWN]
            raise EngineError(
                f"the {self.dialect.name} server at {self.url} answered {response.status_code} to "
                f"{response.request.url.path}: {said}"
            )

    def _refuse_error(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("error"):
            raise EngineError(f"the {self.dialect.name} server at {self.url} said: {str(event)[:_SHOWN]}")

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as exc:
            raise EngineError(
                f"the {self.dialect.name} server at {self.url} was silent for too long ({exc!r}): is it overloaded? "
                "Lower measure.concurrency, or raise measure.idle_seconds"
            ) from exc
        except httpx.HTTPError as exc:
            raise EngineError(
                f"the {self.dialect.name} server at {self.url} does not answer ({exc!r}): it is not running, or died"
            ) from exc
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise EngineError(
                f"the {self.dialect.name} server at {self.url} answers in another form than is known here: {exc!r}"
            ) from exc


def _events(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data:
            continue
        if data == "[DONE]":
            return
        yield json.loads(data)
