"""Server-sent events, and the one body that the events of an answer amount to: equal to what is sent without streaming.

Only whole answers pass: a stream that ends before its answer does is broken.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

DONE = "[DONE]"
_LISTS = ("token_ids", "response_token_ids", "output_ids")  # of a choice: each event has the next ones
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")  # of a delta: each event has the next piece


class StreamBroken(Exception):
    """The stream ended too early, or holds what is no event of an answer."""


class EventReader:
    """Cuts bytes, however they come, into the data of events; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._first = True
        self._skip_newline = False

    def feed(self, part: bytes) -> list[str]:
        """The data of the events that end in this part."""
        if not part:
            return []
        if self._skip_newline:  # the other half of a \r\n
            part = part.removeprefix(b"\n")
        buffer = self._rest + part
        self._skip_newline = part.endswith(b"\r")
        lines = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> list[str]:
        """The data of an event that lacks its empty line, at the end of the stream."""
        last = [self._line(self._rest), self._line(b"")]
        self._rest = b""
        return [event for event in last if event is not None]

    def _line(self, line: bytes) -> str | None:
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if not line:
            data, self._data = self._data, []
            return _text(b"\n".join(data)) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise StreamBroken(f"an event is not UTF-8: {exc}") from exc


class Collector(Protocol):
    """Takes the events of one answer."""

    def add(self, event: str) -> None:
        """Take the data of one event."""
        ...

    def body(self) -> dict[str, Any]:
        """The answer's body.

        Raises:
            StreamBroken: the answer has not ended.
        """
        ...

    def so_far(self) -> dict[str, Any]:
        """What is known of an answer that may not have ended, such as its id."""
        ...


class DeltaCollector:
    """OpenAI's dialect, chat and completions: each event has what is new."""

    def __init__(self) -> None:
        self._frame: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._error: dict[str, Any] | None = None

    def add(self, event: str) -> None:
        if event.strip() == DONE:
            return
        said = _object(event)
        if said.get("error"):
            self._error = said
        for choice in said.pop("choices", None) or ():
            self._take(choice)
        self._frame |= {name: value for name, value in said.items() if value is not None or name not in self._frame}

    def body(self) -> dict[str, Any]:
        if self._error:
            return self.so_far() | {"error": self._error["error"]}
        if not self._choices or any(choice.get("finish_reason") is None for choice in self._choices.values()):
            raise StreamBroken("the stream ended before its answer did")
        return self.so_far()

    def so_far(self) -> dict[str, Any]:
        body = dict(self._frame)
        if isinstance(body.get("object"), str):
            body["object"] = body["object"].removesuffix(".chunk")
        return body | {"choices": [self._choices[index] for index in sorted(self._choices)]}

    def _take(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            raise StreamBroken("a choice is no JSON object")
        whole = self._choices.setdefault(choice.get("index") or 0, {})
        delta = choice.pop("delta", None)
        for name, value in choice.items():
            if name in _LISTS and value is not None:
                whole.setdefault(name, []).extend(value)
            elif name == "text":
                whole[name] = whole.get(name, "") + (value or "")
            elif name == "logprobs" and isinstance(value, dict):
                _extend(whole.setdefault(name, {}), value)
            elif value is not None or name not in whole:
                whole[name] = value
        if isinstance(delta, dict):
            _merge(whole.setdefault("message", {"role": "assistant", "content": None}), delta)


class CumulativeCollector:
    """SGLang's /generate: each event has the answer so far, so that only the last one counts."""

    def __init__(self) -> None:
        self._last = ""

    def add(self, event: str) -> None:
        if event.strip() != DONE:
            self._last = event

    def body(self) -> dict[str, Any]:
        said = self.so_far()
        if said.get("error"):
            return said
        meta = said.get("meta_info")
        if not isinstance(meta, dict) or not meta.get("finish_reason"):
            raise StreamBroken("the stream ended before its answer did")
        ids, counted = said.get("output_ids"), meta.get("completion_tokens")
        if isinstance(ids, list) and isinstance(counted, int) and len(ids) < counted:
            raise StreamBroken("events are not cumulative; start SGLang without --incremental-streaming-output")
        return said

    def so_far(self) -> dict[str, Any]:
        return _object(self._last) if self._last else {}


def _object(event: str) -> dict[str, Any]:
    try:
        said = json.loads(event)
    except ValueError as exc:
        raise StreamBroken(f"an event is not JSON: {exc}") from exc
    if not isinstance(said, dict):
        raise StreamBroken("an event is no JSON object")
    return said


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            message.setdefault(name, None)
        elif name in _TEXTS:
            message[name] = _joined(message.get(name), value)
        elif name == "reasoning_details":
            _merge_parts(message.setdefault(name, []), value, ("text", "summary", "data"))
        elif name == "tool_calls":
            _merge_calls(message, value)
        else:
            message[name] = value


def _joined(before: Any, value: Any) -> Any:
    """Text appended to text; parts of a list, which some servers send, appended to parts."""
    if isinstance(value, list):
        return _parts(before) + value
    return _parts(before) + _parts(value) if isinstance(before, list) else (before or "") + str(value)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [{"type": "text", "text": value}] if value else []


def _merge_parts(parts: list[Any], more: list[Any], texts: tuple[str, ...]) -> None:
    """Pieces of one part, known by its index and type, are joined; others are appended."""
    for piece in more:
        last = parts[-1] if parts else {}
        same = all(last.get(name) == piece.get(name) for name in ("index", "type"))
        if not parts or piece.get("index") is None or not same:
            parts.append(dict(piece))
            continue
        for name, value in piece.items():
            last[name] = (last.get(name) or "") + value if name in texts and value is not None else value


def _merge_calls(message: dict[str, Any], more: list[dict[str, Any]]) -> None:
    """Tool calls come with their place in the list, and their arguments in pieces."""
    calls = message.get("tool_calls") or []
    message["tool_calls"] = calls
    for piece in more:
        at = piece.get("index", len(calls))
        if at > len(calls):
            raise StreamBroken(f"tool call {at} comes before call {len(calls)}")
        if at == len(calls):
            calls.append({"function": {"name": "", "arguments": ""}})
        call, function = calls[at], piece.get("function") or {}
        call |= {
            name: value for name, value in piece.items() if name not in ("function", "index") and value is not None
        }
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _extend(whole: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        whole[name] = whole.get(name, []) + value if isinstance(value, list) and whole.get(name) else value
