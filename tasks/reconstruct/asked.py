"""What a wrapped request says about its prompt: messages, tools, and whether the model was to think, in the words of
several APIs. Keys that are not understood are reported, since the prompt may be another one for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.formats.format import Fault

THINKING = "thinking"  # of the canonical request: a boolean, absent where the request does not say

_LIMITS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
_SWITCHES = ("enable_thinking", "thinking", "reasoning", "reasoning_effort")
_READ = frozenset(("messages", "tools", "chat_template_kwargs", "stop", "sampling_params", *_LIMITS, *_SWITCHES))
# Neither the prompt nor what an answer's ids are depends on these.
_NEUTRAL = frozenset(
    (
        "model",
        "models",
        "provider",
        "route",
        "user",
        "metadata",
        "seed",
        "n",
        "stream",
        "stream_options",
        "usage",
        "include_reasoning",
        "separate_reasoning",
        "temperature",
        "top_p",
        "top_k",
        "top_a",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "min_tokens",
        "store",
        "service_tier",
        "priority",
        "request_id",
        "return_token_ids",
        "return_meta_info",
        "return_tokens_as_token_ids",
        "return_logprob",
        "return_prompt_token_ids",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "prompt_cache_key",
        "cache_prompt",
        "timeout",
        "extra_headers",
    )
)
_OFF, _ON = ("none", "disabled"), ("enabled", "adaptive", "auto", "minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class Request:
    """A request as far as reconstruction needs it."""

    written: str = "{}"  # canonical JSON: messages, tools, chat_template_kwargs, THINKING
    limit: int | None = None  # of the answer's ids
    stops: bool = False  # it gave stop strings, which an answer may have ended with in place of an end id
    unknown: tuple[str, ...] = ()  # keys that are not understood


def read_request(sent: Any) -> Request | Fault:
    """A request body; None stands for one that is not there."""
    sent = {} if sent is None else sent
    if not isinstance(sent, Mapping) or not isinstance(sent.get("messages") or [], list):
        return Fault("request_unreadable", "the request is no JSON object with a list of messages")
    if not all(isinstance(message, Mapping) for message in sent.get("messages") or []):
        return Fault("request_unreadable", "a message of the request is no JSON object")
    extra = sent.get("extra_body") or {}
    if not isinstance(extra, Mapping) or not isinstance(sent.get("sampling_params") or {}, Mapping):
        return Fault("request_unreadable", "the request's extra_body or sampling_params are no JSON object")
    whole = {**(sent.get("sampling_params") or {}), **sent, **extra}
    whole.pop("extra_body", None)
    if not isinstance(kwargs := whole.get("chat_template_kwargs") or {}, Mapping):
        return Fault("request_unreadable", "the request's chat_template_kwargs are no JSON object")
    limit = next((whole[name] for name in _LIMITS if whole.get(name) is not None), None)
    if limit is not None and (type(limit) is not int or not 0 < limit < 2**31):
        return Fault("request_unreadable", f"the request's limit of tokens is {limit!r}")
    thinking = _thinking(whole)
    if isinstance(thinking, Fault):
        return thinking
    kept = {name: whole[name] for name in ("messages", "tools") if whole.get(name)}
    if effort := _effort(whole):
        kwargs = {"reasoning_effort": effort, **kwargs}
    kept |= {"chat_template_kwargs": dict(kwargs)} if kwargs else {}
    kept |= {} if thinking is None else {THINKING: thinking}
    written = json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        written.encode()
    except UnicodeEncodeError:
        return Fault("lone_surrogate", "the request has half of a surrogate pair")
    unknown = tuple(sorted(name for name in whole if name not in _READ | _NEUTRAL and whole[name] is not None))
    return Request(written, limit, bool(whole.get("stop")), unknown)


def _thinking(sent: Mapping[str, Any]) -> bool | Fault | None:
    """Whether the model was to think; None if nothing says it."""
    said: dict[str, bool] = {}
    for name, value in _said(sent):
        found = _switch(value)
        if found is None:
            return Fault("request_unreadable", f"the request's {name} is {value!r}, and says neither on nor off")
        said[name] = found
    if len(set(said.values())) > 1:
        return Fault("request_unreadable", f"the request turns thinking on and off: {said}")
    return next(iter(said.values()), None)


def _said(sent: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _SWITCHES:
        value = sent.get(name)
        if name == "reasoning" and isinstance(value, Mapping):
            told = [value[key] for key in ("enabled", "effort") if value.get(key) is not None]
            if not told and value.get("max_tokens"):
                told = [True]
            yield from ((name, one) for one in told)
        elif isinstance(value, Mapping):
            yield name, value.get("type", value)  # {"type": "enabled", "budget_tokens": 4096}
        elif value is not None:
            yield name, value


def _switch(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    return False if word in _OFF else True if word in _ON else None


def _effort(sent: Mapping[str, Any]) -> str | None:
    nested = sent.get("reasoning")
    effort = sent.get("reasoning_effort") or (nested.get("effort") if isinstance(nested, Mapping) else None)
    return effort if isinstance(effort, str) else None
