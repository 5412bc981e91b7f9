"""Requests as each kind of server wants them, asking for token ids wherever the server can give them.

Which prompts are asked, and what is done with the answers, is decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.generate.http.stream import Collector, CumulativeCollector, DeltaCollector

_STREAM_INTERVAL = 50  # tokens per event of a cumulative stream

Engine = Literal["sglang", "vllm", "openai", "openrouter"]


@dataclass(frozen=True)
class Question:
    """One prompt: its messages and tools, and its ids where the dialect sends ids."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] | None = None
    prompt_ids: Sequence[int] = ()


@dataclass(frozen=True)
class Manner:
    """How every prompt of a run is to be answered."""

    model: str
    temperature: float
    top_p: float
    seed: int | None = None
    stream: bool = False
    template_switches: dict[str, Any] = field(default_factory=dict)
    provider: dict[str, Any] = field(default_factory=dict)  # OpenRouter's routing rules
    extra_body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """A request that is ready to be sent, to any endpoint of its dialect."""

    key: str  # the caller's name for it
    path: str
    body: bytes
    tokens: int  # the most that it can be billed for, as estimated by the caller
    collector: Callable[[], Collector] | None = None  # of a streamed answer


@dataclass(frozen=True)
class Dialect:
    """What one kind of server is asked, and where."""

    engine: Engine
    path: str
    fields: Callable[[Question, Manner, int], dict[str, Any]]
    collector: Callable[[], Collector]

    def prepare(self, key: str, question: Question, manner: Manner, max_tokens: int, tokens: int) -> Prepared:
        """The request for one prompt; `max_tokens` limits its answer, `tokens` is all that it can be billed for."""
        body = self.fields(question, manner, max_tokens) | manner.extra_body
        if manner.stream:
            body["stream"] = True
            if self.engine == "sglang":  # each event has the answer so far: one per token would be quadratic
                body["sampling_params"] = {"stream_interval": _STREAM_INTERVAL} | body["sampling_params"]
            if self.engine in ("vllm", "openai"):
                body["stream_options"] = {"include_usage": True}
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return Prepared(key, self.path, data, tokens, self.collector if manner.stream else None)

    def root(self, url: str) -> str:
        """The base URL to which paths are joined: with the API's version, however the recipe gives it."""
        base = url.rstrip("/")
        if self.engine == "sglang":
            return base.removesuffix("/v1")
        if self.engine == "openrouter":
            return base if base.endswith("/v1") else f"{base.removesuffix('/api')}/api/v1"
        return base if base.endswith("/v1") else f"{base}/v1"


def dialect(engine: Engine, api: Literal["chat", "completions"]) -> Dialect:
    """The dialect of an engine; SGLang's own API takes ids whatever `api` says, OpenRouter chats."""
    if engine == "sglang":
        return Dialect(engine, "/generate", _generate, CumulativeCollector)
    if engine == "openrouter":
        return Dialect(engine, "/chat/completions", _openrouter, DeltaCollector)
    ids = {"return_token_ids": True} if engine == "vllm" else {}  # strict servers refuse what they do not know
    if api == "chat":
        return Dialect(engine, "/chat/completions", lambda *asked: _chat(*asked) | ids, DeltaCollector)
    return Dialect(engine, "/completions", lambda *asked: _completions(*asked) | ids, DeltaCollector)


def _generate(question: Question, manner: Manner, max_tokens: int) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "temperature": manner.temperature,
        "top_p": manner.top_p,
        # the text is then exactly what the ids decode to
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if manner.seed is not None:
        sampling["sampling_seed"] = manner.seed
    return {"input_ids": list(question.prompt_ids), "sampling_params": sampling}


def _openai(manner: Manner, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": manner.model,
        "max_tokens": max_tokens,
        "temperature": manner.temperature,
        "top_p": manner.top_p,
    }
    return body if manner.seed is None else body | {"seed": manner.seed}


def _chat(question: Question, manner: Manner, max_tokens: int) -> dict[str, Any]:
    body = _openai(manner, max_tokens) | {"messages": list(question.messages)}
    if question.tools:
        body["tools"] = list(question.tools)
    if manner.template_switches:
        body["chat_template_kwargs"] = manner.template_switches
    return body


def _completions(question: Question, manner: Manner, max_tokens: int) -> dict[str, Any]:
    return _openai(manner, max_tokens) | {"prompt": list(question.prompt_ids)}


def _openrouter(question: Question, manner: Manner, max_tokens: int) -> dict[str, Any]:
    body = _chat(question, manner, max_tokens)
    body.pop("chat_template_kwargs", None)  # thinking is switched by `reasoning`, in extra_body
    return body | ({"provider": manner.provider} if manner.provider else {})
