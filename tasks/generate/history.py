"""What a later turn of a conversation is asked: the turn before as it was sent, its regenerated answer, what is new.

Recorded tool results are given to the calls that the target made now (results.py). A call's arguments go into the
history as the JSON that a client would be given, read by the target's format out of what was sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasks.formats.arguments import UnreadableArguments
from tasks.formats.format import Fault, Reply, TokenFormat, ToolCall
from tasks.generate.results import spliced

Message = Mapping[str, Any]


def first_request(new: Sequence[Message], tools: Sequence[Any] | None) -> dict[str, Any] | Fault:
    """The request of a conversation's first turn."""
    messages = continued(Reply(reasoning="", content=""), new)
    return messages if isinstance(messages, Fault) else _request(messages, tools)


def next_request(
    before: Mapping[str, Any], reply: Reply, new: Sequence[Message], tools: Sequence[Any] | None
) -> dict[str, Any] | Fault:
    """The request of a later turn, or why there is none.

    Args:
        before: the request of the turn before.
        reply: the target's answer to it.
        new: the recorded messages since then, without assistant turns.
        tools: the declarations that this turn sends.
    """
    messages = continued(reply, new)
    if isinstance(messages, Fault):
        return messages
    return _request([*before["messages"], assistant_message(reply), *messages], tools)


def assistant_message(reply: Reply) -> dict[str, Any]:
    """An answer as a message of the next request."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message


def readable(reply: Reply, token_format: TokenFormat, tools: Sequence[Mapping[str, Any]] | None) -> Reply | Fault:
    """An answer whose calls have JSON for arguments and an id each; calls that nobody could have run are a fault.

    Args:
        reply: as the format took it apart.
        token_format: of the target.
        tools: those of the request that was answered.
    """
    calls = []
    for place, call in enumerate(reply.calls):
        try:
            arguments = token_format.arguments(call, tools)
        except UnreadableArguments as exc:
            return Fault("tool_call_unreadable", f"call {place} ({call.name or 'no name'}): {exc}")
        # families without ids get one by the call's place
        calls.append(ToolCall(call.name, arguments, call.call_id or f"call_{place}"))
    return replace(reply, calls=tuple(calls))


def continued(reply: Reply, new: Sequence[Message]) -> list[dict[str, Any]] | Fault:
    """The new messages as they follow an answer: recorded tool results first, in the order of the answer's calls."""
    count = next((place for place, message in enumerate(new) if message["role"] != "tool"), len(new))
    results, rest = new[:count], [dict(message) for message in new[count:]]
    if late := [message.get("name") for message in rest if message["role"] == "tool"]:
        return Fault("tool_call_mismatch", f"{late}: results that come after another message")
    found = spliced(reply.calls, results)
    return found if isinstance(found, Fault) else [*found, *rest]


def canonical_text(request: Mapping[str, Any]) -> str:
    """A request as it is stored."""
    return json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def texts_of(request: Mapping[str, Any]) -> Iterator[str]:
    """Every text in a request that can reach the prompt."""
    return _strings([request["messages"], request.get("tools")])


def _request(messages: Sequence[Message], tools: Sequence[Any] | None) -> dict[str, Any]:
    request = {"messages": list(messages)} | ({"tools": list(tools)} if tools else {})
    return json.loads(canonical_text(request))  # as it is stored: the order of keys can reach the prompt


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _strings(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _strings(inner)
