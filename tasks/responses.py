"""What an engine answered, read off one raw response body: OpenAI-style chat and text completions, SGLang's /generate.

Pure: bytes in, answers or named faults out. It trims, joins and guesses nothing: what two fields say differently is a
fault, what a server did not say stays null. Sending requests and streams is left to engines, ids to reconstruct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.formats.format import Fault

_INT32 = 2**31
_SHOWN = 200  # characters of a body in a fault


@dataclass(frozen=True)
class Response:
    """One answer as the server gave it, under the names of contract ANSWERS; null is what it did not say."""

    prompt_ids: list[int] | None
    output_ids: list[int] | None
    reasoning: str | None
    content: str | None
    tool_calls: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    provider: str | None
    model: str | None
    quantization: str | None
    response_id: str | None


@dataclass(frozen=True)
class Asked:
    """What was asked, for the columns of ANSWERS that no response has."""

    prompt_id: str
    dataset: str
    request: str  # canonical JSON: messages and tools as sent
    engine: str
    root_id: str = ""  # of the conversation's first turn; empty: this is the first
    max_tokens: int | None = None
    provider: str | None = None  # the one that was pinned, for servers that do not name themselves
    model: str | None = None
    quantization: str | None = None  # of the endpoint that was pinned; responses rarely say it


class _Unusable(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.fault = Fault(reason, detail)


def read_responses(raw: str | bytes | Mapping[str, Any] | Sequence[Any]) -> list[Response | Fault]:
    """Every answer in a response body, one per choice in the order of their index; never empty.

    The usage of a body with several choices counts them together, so their own counts are null.
    """
    try:
        body = _parsed(raw) if isinstance(raw, str | bytes) else raw
        if isinstance(body, Sequence):  # a batch of /generate
            if not body or not all(isinstance(item, Mapping) for item in body):
                raise _Unusable("not_a_response", "the body is a list, but not one of answers")
            return [answer for item in body for answer in read_responses(item)]
        if not isinstance(body, Mapping):
            raise _Unusable("not_a_response", f"the body is {_shown(body)}, no JSON object")
        _refuse_error(body)
        if "choices" not in body and isinstance(body.get("meta_info"), Mapping):
            return [_read(_generated, body, body["meta_info"])]
        choices = _ordered_choices(body)
    except _Unusable as exc:
        return [exc.fault]
    return [_read(_choice, body, choice, len(choices) == 1) for choice in choices]


def read_response(raw: str | bytes | Mapping[str, Any]) -> Response | Fault:
    """The one answer in a response body; several are the fault `several_choices`."""
    answers = read_responses(raw)
    if len(answers) > 1:
        return Fault("several_choices", f"the body has {len(answers)} answers, one was asked for: request n=1")
    return answers[0]


def answer_row(response: Response, asked: Asked) -> dict[str, Any]:
    """A row of ANSWERS."""
    return {
        "prompt_id": asked.prompt_id,
        "root_id": asked.root_id or asked.prompt_id,
        "dataset": asked.dataset,
        "request": asked.request,
        "max_tokens": asked.max_tokens,
        "engine": asked.engine,
        **vars(response),
        "provider": response.provider or asked.provider,
        "model": response.model or asked.model,
        "quantization": response.quantization or asked.quantization,
    }


def _parsed(raw: str | bytes) -> Any:
    try:
        return json.loads(raw)  # white space that kept the connection alive may stand before the JSON
    except (ValueError, RecursionError) as exc:
        raise _Unusable("not_json", f"the body is not JSON ({exc}): {_shown(raw)}") from None


def _read(read: Any, *parts: Any) -> Response | Fault:
    try:
        return read(*parts)
    except _Unusable as exc:
        return exc.fault


def _refuse_error(part: Mapping[str, Any]) -> None:
    """An error is never an answer, whatever the status was and whatever text came with it."""
    error = part.get("error")
    if error is None and part.get("object") == "error":
        error = part
    if error is not None and error is not False:
        said = error.get("message", error) if isinstance(error, Mapping) else error
        code = f" {error['code']}" if isinstance(error, Mapping) and error.get("code") is not None else ""
        raise _Unusable("provider_error", f"error{code} in place of an answer: {_shown(said)}")


def _ordered_choices(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _Unusable("no_choices", f"the body has no answer, only {sorted(map(str, body))}")
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise _Unusable("not_a_response", "a choice is no JSON object")
    indices = [choice.get("index", place) for place, choice in enumerate(choices)]
    if not all(type(index) is int for index in indices) or len(set(indices)) < len(indices):
        raise _Unusable("choices_repeated", f"the choices have the indices {_shown(indices)}")
    return [choice for _, choice in sorted(zip(indices, choices, strict=True), key=lambda pair: pair[0])]


def _choice(body: Mapping[str, Any], choice: Mapping[str, Any], alone: bool) -> Response:
    """A choice of chat/completions or completions."""
    _refuse_error(choice)
    message = choice.get("message")
    if message is None and "text" in choice:
        message = {"content": choice["text"]}
    if not isinstance(message, Mapping):
        raise _Unusable("not_a_response", "the choice has neither a message nor a text")
    usage = _mapping(body, "usage")
    details = _mapping(usage, "completion_tokens_details")
    spoken = details.get("reasoning_tokens")
    return Response(
        prompt_ids=_ids(_first(choice, body, "prompt_token_ids"), "prompt_token_ids"),
        output_ids=_ids(_output_ids(choice), "token_ids"),
        reasoning=_reasoning(message),
        content=_content(message.get("content")),
        tool_calls=_tool_calls(message),
        finish_reason=_finish_reason(choice.get("finish_reason"), _first(choice, {}, "stop_reason", "matched_stop")),
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens") if alone else None,
        reasoning_tokens=_count(details if spoken is not None else usage, "reasoning_tokens") if alone else None,
        provider=_string(body, "provider"),
        model=_string(body, "model"),
        quantization=_string(body, "quantization"),
        response_id=_string(body, "id"),
    )


def _generated(body: Mapping[str, Any], meta: Mapping[str, Any]) -> Response:
    """An answer of SGLang's /generate, whose text lacks the end id that `output_ids` has."""
    return Response(
        prompt_ids=_ids(_first(body, meta, "prompt_token_ids"), "prompt_token_ids"),
        output_ids=_ids(body.get("output_ids"), "output_ids"),
        reasoning=None,
        content=_content(body.get("text")),
        tool_calls=None,
        finish_reason=_finish_reason(meta.get("finish_reason")),
        prompt_tokens=_count(meta, "prompt_tokens"),
        completion_tokens=_count(meta, "completion_tokens"),
        reasoning_tokens=_count(meta, "reasoning_tokens"),
        provider=_string(body, "provider"),
        model=_string(body, "model"),
        quantization=_string(body, "quantization"),
        response_id=_string(meta, "id"),
    )


def _reasoning(message: Mapping[str, Any]) -> str | None:
    """The one text that has three names."""
    found = {name: _text(message.get(name), name) for name in ("reasoning", "reasoning_content")}
    found["reasoning_details"] = _detailed(message.get("reasoning_details"))
    texts = {text for text in found.values() if text}
    if len(texts) > 1:
        lengths = ", ".join(f"{name} has {len(text)} characters" for name, text in found.items() if text)
        raise _Unusable("reasoning_fields_differ", f"one text under several names, but not the same: {lengths}")
    if texts:
        return texts.pop()
    return "" if any(text is not None for text in found.values()) else None


def _detailed(details: Any) -> str | None:
    if details is None:
        return None
    if not isinstance(details, list) or not all(isinstance(part, Mapping) for part in details):
        raise _Unusable("not_a_response", f"reasoning_details is {_shown(details)}, no list of parts")
    if kinds := sorted({str(part.get("type")) for part in details} - {"reasoning.text"}):
        raise _Unusable("reasoning_not_sampled_text", f"reasoning comes as {', '.join(kinds)}, not as it was sampled")
    texts = [_text(part.get("text"), "reasoning_details") for part in details]
    return "".join(text for text in texts if text) if details else None


def _content(content: Any) -> str | None:
    if not isinstance(content, list):
        return _text(content, "content")
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") not in ("text", "output_text"):
            raise _Unusable("content_not_text", f"a part of the content is {_shown(part)}")
    return "".join(_text(part.get("text"), "content") or "" for part in parts)


def _tool_calls(message: Mapping[str, Any]) -> str | None:
    calls = message.get("tool_calls") or []
    if old := message.get("function_call"):
        calls = [{"type": "function", "function": old}]
    if not calls:
        return None
    written = json.dumps(calls, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return _text(written, "tool_calls")


def stopped_at(text: str) -> str:
    """The finish reason of an answer that ended where this text was met."""
    return f"stop at {text!r}"


def _finish_reason(reason: Any, matched: Any = None) -> str | None:
    """A string, or SGLang's {"type": …, "matched": …}; a stop string that was met is no end of turn, so it is named.

    Args:
        reason: as returned.
        matched: what ended the answer, if the server told: the id of an end, or a stop string.
    """
    if isinstance(reason, Mapping):
        matched = reason.get("matched", matched)
        if reason.get("type") == "abort":
            raise _Unusable("provider_error", f"the server gave up: {_shown(reason.get('message', reason))}")
        reason = reason.get("type")
    if reason in ("error", "abort"):
        raise _Unusable("provider_error", f"finish_reason is {reason}: what came is not the whole answer")
    if reason == "stop" and isinstance(matched, str):
        return _text(stopped_at(matched), "finish_reason")
    return _text(reason, "finish_reason")


def _output_ids(choice: Mapping[str, Any]) -> Any:
    """vLLM's name, an older one, and that of SGLang's chat."""
    return _first(choice, {}, "token_ids", "output_ids", "response_token_ids")


def _first(near: Mapping[str, Any], far: Mapping[str, Any], *names: str) -> Any:
    found = (part[name] for part in (near, far) for name in names if part.get(name) is not None)
    return next(found, None)


def _ids(ids: Any, name: str) -> list[int] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(number) is int and 0 <= number < _INT32 for number in ids):
        raise _Unusable("ids_not_integers", f"{name} is {_shown(ids)}, not a list of token ids")
    return ids


def _count(part: Mapping[str, Any], name: str) -> int | None:
    count = part.get(name)
    if count is not None and (type(count) is not int or not 0 <= count < _INT32):
        raise _Unusable("usage_not_a_count", f"{name} is {_shown(count)}")
    return count


def _mapping(part: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = part.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise _Unusable("usage_not_a_count", f"{name} is {_shown(value)}, no JSON object")
    return value or {}


def _string(part: Mapping[str, Any], name: str) -> str | None:
    value = part.get(name)
    return _text(value, name) or None


def _text(value: Any, name: str) -> str | None:
    """A text that can be written as UTF-8, or null."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise _Unusable("not_a_response", f"{name} is {_shown(value)}, no text")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise _Unusable("lone_surrogate", f"{name} has half of a surrogate pair at character {exc.start}") from None
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
