"""What a fake server does with each request: answers it in its dialect, or goes wrong as it was told to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any

from tests.servers.account import MICROS, Account, Generation, Price
from tests.servers.answers import Vocabulary, answer_to, key_of
from tests.servers.bodies import (
    Made,
    chat_body,
    chat_events,
    completion_body,
    completion_events,
    generate_body,
    generate_events,
)
from tests.servers.faults import BILLED_AND_LOST, HARMLESS, Fault, Faults
from tests.servers.wire import SSE, Connection, Request

Work = Coroutine[Any, Any, None] | None
MODEL = "fake-model"
PROVIDER = "ProviderA"
QUANTIZATION = "fp8"
_PADDING = b"\n         \n" * 3


@dataclass(frozen=True)
class Options:
    """How a server behaves when nothing goes wrong."""

    flavour: str = "vllm"  # how /v1 gives token ids: as vllm or sglang do
    model: str = MODEL
    reasoning: bool = False  # answers of chats begin with reasoning
    reasoning_field: str = "reasoning"
    latency: float = 0.0  # seconds before each answer
    capacity: int = 0  # requests in flight above which it says 429; 0 is no limit
    api_key: str = ""  # demanded, if given
    limit_usd: float = 0.0  # credits of the account; 0 is no limit
    in_flight_usd: float = 0.0  # worst cases in flight above which OpenRouter says 402 with Retry-After
    seed: int = 0


Body = Callable[[Made], dict[str, Any]]
Events = Callable[[Made], Iterator[dict[str, Any]]]
_DIALECTS: dict[str, tuple[Body, Events]] = {
    "/generate": (generate_body, generate_events),
    "/chat/completions": (chat_body, chat_events),
    "/completions": (completion_body, completion_events),
}


class Routes:
    """The handler of one server."""

    def __init__(self, options: Options, vocabulary: Vocabulary, faults: Faults) -> None:
        self.options, self.vocabulary, self.faults = options, vocabulary, faults
        self.account = Account(Price(), round(options.limit_usd * MICROS), round(options.in_flight_usd * MICROS))

    def __call__(self, request: Request, connection: Connection) -> Work:
        """Answer one request."""
        if request.path.startswith("/_fake/"):
            return self._control(request, connection)
        if request.method == "GET":
            return connection.reply(*self._get(request))
        path = next((path for path in _DIALECTS if request.path.endswith(path)), None)
        if path is None:
            return connection.reply(404, _error(404, f"no such path: {request.path}"))
        return _Asked(self, request, connection, path).work()

    def _control(self, request: Request, connection: Connection) -> None:
        if request.path == "/_fake/faults":
            self.faults.replace(Fault(**fault) for fault in json.loads(request.body))
        elif request.path == "/_fake/reset":
            self.account.reset()
        connection.reply(200, json.dumps(self.account.summary()).encode())

    def _get(self, request: Request) -> tuple[int, bytes]:
        path = request.path.rsplit("/", 1)[-1]
        if self.options.api_key and not self.allowed(request):
            return 401, _error(401, "No auth credentials found")
        if path == "generation":
            found = self.account.generations.get(request.query.get("id", ""))
            return _json({"data": found.document()}) if found else (404, _error(404, "no such generation"))
        if path == "endpoints":
            return _json({"data": {"id": self.options.model, "endpoints": [self._offer()]}})
        pages = {
            "ready": {},
            "health": {},
            "server_info": {"version": "0.5.23", "max_running_requests": 2048, "context_length": 32768},
            "model_info": {"model_path": self.options.model, "is_generation": True},
            "models": {"object": "list", "data": [self._model(request.path.startswith("/api/"))]},
            "key": {"data": self._key()},
        }
        return _json(pages[path]) if path in pages else (404, _error(404, f"no such path: {request.path}"))

    def _model(self, openrouter: bool) -> dict[str, Any]:
        model: dict[str, Any] = {"id": self.options.model, "object": "model", "max_model_len": 32768}
        if openrouter:
            model |= {"context_length": 32768, "pricing": vars(self.account.price) | {"request": "0"}}
        return model

    def _offer(self) -> dict[str, Any]:
        pricing = vars(self.account.price) | {"request": "0"}
        return {"provider_name": PROVIDER, "tag": "provider-a/fp8", "quantization": QUANTIZATION, "pricing": pricing}

    def _key(self) -> dict[str, Any]:
        limit = self.account.limit_micros / MICROS or None
        left = None if limit is None else (self.account.limit_micros - self.account.spent) / MICROS
        return {"label": "fake", "limit": limit, "limit_remaining": left, "usage": self.account.spent / MICROS}

    def allowed(self, request: Request) -> bool:
        """Whether the request has the right key."""
        return request.headers.get("authorization") == f"Bearer {self.options.api_key}"


class _Asked:
    """One request for an answer, from its arrival to what is counted of it."""

    def __init__(self, routes: Routes, request: Request, connection: Connection, path: str) -> None:
        self.options, self.account, self.connection = routes.options, routes.account, connection
        self.body = request.document()
        self.key = key_of(self.body)
        self.attempt = self.account.arrive(self.key)
        self.fault = routes.faults.draw(self.key, request.path, self.attempt)
        self.streamed = bool(self.body.get("stream"))
        self.openrouter = request.path.startswith("/api/")
        self.to_body, self.to_events = _DIALECTS[path]
        self.answer = answer_to(self.body, routes.vocabulary, self._reasons(path))
        self.refused = self._refusal(routes.allowed(request))

    def work(self) -> Work:
        """Answer at once, or return what waits."""
        kind = self.fault.kind if self.fault else ""
        if self.refused:
            return self._refuse(*self.refused)
        if kind == "status":
            return self._status(self.fault.options if self.fault else {})
        if kind == "reset_before":
            self.connection.reset()
            return self._leave(kind)
        if not self.streamed and not self.options.latency and kind not in ("slow", "stall_before", "stall_middle"):
            return self._whole(kind)
        worst = self._worst() if self.openrouter else 0
        self.account.reserved += worst  # here: requests that arrive together must see each other's
        return self._slowly(kind, worst)

    async def _slowly(self, kind: str, worst: int) -> None:
        try:
            await asyncio.sleep(self.options.latency)
            if kind == "stall_before":
                await asyncio.Event().wait()
            if self.streamed and kind not in ("not_json", "truncated_json", "error_in_body"):
                return await self._stream(kind)
            if kind == "slow":
                await asyncio.sleep(self._option("seconds", 0.05))
            self._whole(kind)
            if kind == "stall_middle":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if kind != "stall_middle":  # which has been counted
                self._leave("cancelled")
            raise
        finally:
            self.account.reserved -= worst

    def _whole(self, kind: str) -> None:
        if kind == "error_in_body":
            self.connection.reply(200, _error(**{"code": 429, "message": "upstream", **self._options()}))
            return self._leave(kind)
        if kind == "not_json":
            self.connection.reply(200, b"<html>Bad gateway</html>", kind="text/html")
            return self._leave(kind)
        made = self._make(kind)
        document = self.to_body(made)
        if kind == "error_in_choice":
            error = {"code": self._option("code", 502), "message": "Upstream closed"}
            document["choices"][0] |= {"finish_reason": "error", "native_finish_reason": None, "error": error}
        else:
            self._bill(made.generation)
            _reshape(kind, document)
        return self._send(kind, json.dumps(document, ensure_ascii=False).encode())

    def _send(self, kind: str, data: bytes) -> None:
        if kind == "truncated_json":
            self.connection.reply(200, data[: len(data) // 2])
        elif kind == "padded":
            self.connection.begin_chunks(200, kind="application/json")
            self.connection.chunk(_PADDING)
            self.connection.chunk(data)
            self.connection.end_chunks()
        elif kind in BILLED_AND_LOST:
            promise = {"Content-Length": str(len(data))}
            self.connection.begin(200, data[: len(data) // 2], promise)
            if kind == "reset_middle":
                self._later(self.connection.reset)
            elif kind == "cut":
                self.connection.close()
        else:
            self.connection.reply(200, data)
        self._leave(kind or "answered")

    async def _stream(self, kind: str) -> None:
        made = self._make(kind)
        connection = self.connection
        connection.begin_chunks(200, kind=SSE)
        if kind == "padded" or self.openrouter:
            connection.chunk(b": OPENROUTER PROCESSING\n\n")
        events = list(self.to_events(made))
        stop = len(events) // 2 if kind in BILLED_AND_LOST or kind.startswith("error_in") else len(events)
        for event in events[:stop]:
            if kind == "slow":
                await asyncio.sleep(self._option("seconds", 0.05))
            _reshape(kind, event)
            connection.chunk(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
        if kind.startswith("error_in"):
            choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
            said = json.loads(_error(self._option("code", 429), "x")) | {"choices": [choice]}
            connection.chunk(b"data: " + json.dumps(said).encode() + b"\n\n")
            connection.end_chunks()
            return self._leave(kind)
        self._bill(made.generation)
        self._leave(kind or "answered")
        if kind == "stall_middle":
            await asyncio.Event().wait()
        if kind in BILLED_AND_LOST:
            return self._later(connection.reset) if kind == "reset_middle" else connection.close()
        connection.chunk(b"data: [DONE]\n\n")
        return connection.end_chunks()

    def _make(self, kind: str) -> Made:
        """The answer with its bill, not charged yet."""
        options = self.options
        prompt, completion = len(self.answer.prompt_ids), len(self.answer.ids)
        micros = self.account.price.micros(prompt, completion) if self.openrouter else 0
        generation = Generation(
            f"gen-{self.key[:20]}-{self.attempt}",
            self.key,
            self._option("model", "other-model") if kind == "other_model" else options.model,
            self._option("provider", "OtherHost") if kind in ("other_provider", "other_quantization") else PROVIDER,
            prompt,
            completion,
            micros,
            self.streamed,
        )
        name = self._option("name", "reasoning") if kind == "reasoning_field" else options.reasoning_field
        level = self._option("quantization", "fp4") if kind == "other_quantization" else ""
        flavour = "openrouter" if self.openrouter else options.flavour
        made = Made(self.answer, generation, self.body, flavour, name, level)
        return replace(made, answer=replace(self.answer, content=[])) if kind == "empty_content" else made

    def _status(self, options: dict[str, Any]) -> None:
        status = options.get("status", 500)
        details = {name: options[name] for name in ("limit_source", "error_type") if name in options}
        headers = _retry_after(options.get("retry_after"))
        self.connection.reply(status, _error(status, options.get("message", "told to"), **details), headers)
        self._leave(f"status {status}")

    def _refusal(self, allowed: bool) -> tuple[int, str, dict[str, str]] | None:
        """Status, message and headers where the account or the capacity does not allow an answer."""
        options, account = self.options, self.account
        if options.api_key and not allowed:
            return 401, "No auth credentials found", {}
        if options.capacity and account.in_flight > options.capacity:
            return 429, "Too many requests in flight", {}
        if (
            self.openrouter
            and options.limit_usd
            and account.spent + account.reserved + self._worst() > (account.limit_micros)
        ):
            return 402, "Insufficient credits", {}
        if self.openrouter and options.in_flight_usd and account.reserved + self._worst() > account.in_flight_limit:
            return 402, "In-flight budget exceeded", {"Retry-After": "1"}
        return None

    def _refuse(self, status: int, message: str, headers: dict[str, str]) -> None:
        source = "openrouter_in_flight_budget" if headers else "openrouter_credits"
        self.connection.reply(status, _error(status, message, limit_source=source), headers)
        self._leave(f"status {status}")

    def _worst(self) -> int:
        return self.account.price.micros(len(self.answer.prompt_ids), self.body.get("max_tokens", 128))

    def _bill(self, generation: Generation) -> None:
        self.account.bill(generation)

    def _leave(self, outcome: str) -> None:
        kind = self.fault.kind if self.fault else ""
        self.account.leave(self.key, outcome, outcome == "answered" or (outcome == kind and kind in HARMLESS))

    def _reasons(self, path: str) -> bool:
        return path == "/chat/completions" and (
            self.options.reasoning or bool(self.fault and self.fault.kind == "reasoning_field")
        )

    def _options(self) -> dict[str, Any]:
        return self.fault.options if self.fault else {}

    def _option(self, name: str, default: Any) -> Any:
        return self._options().get(name, default)

    def _later(self, act: Callable[[], None]) -> None:
        """Act when what was written has left: a reset throws away what has not."""
        asyncio.get_running_loop().call_later(0.01, act)


def _reshape(kind: str, document: dict[str, Any]) -> None:
    """Change a good body, or an event of a stream, as the fault says."""
    if kind == "no_usage":
        document.pop("usage", None)
    elif kind == "null_choices":
        document["choices"] = None
    elif kind == "content_parts" and document.get("choices"):
        message = document["choices"][0].get("message") or document["choices"][0].get("delta")
        if message and message.get("content"):
            message["content"] = [{"type": "text", "text": message["content"]}]


def _error(code: int, message: str, **metadata: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "metadata": metadata}}).encode()


def _json(document: dict[str, Any]) -> tuple[int, bytes]:
    return 200, json.dumps(document).encode()


def _retry_after(said: str | None) -> dict[str, str]:
    """The header: seconds, or "date:7" for the date in seven seconds."""
    if said is None:
        return {}
    kind, _, seconds = said.partition(":")
    return {"Retry-After": formatdate(time.time() + float(seconds), usegmt=True) if kind == "date" else said}
