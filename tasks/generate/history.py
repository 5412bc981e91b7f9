"""What a later turn of a conversation is asked: the turn before as it was sent, its regenerated answer, what is new.

Recorded tool results are given to the calls that the target made now, by name and in order; a result without a call, or
a call without a result, leaves the turn without a history that could be true. The target's arguments can differ from
the recorded call's, whose result is used all the same: only a live tool could know better.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tasks.formats.format import Fault, Reply, ToolCall

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
    """An answer as a message of the next request; arguments of calls stay the text that was sampled."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call_id(call, place),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(reply.calls)
        ]
    return message


def call_id(call: ToolCall, place: int) -> str:
    """The id that the model gave its call; for families without ids, one by the call's place."""
    return call.call_id or f"call_{place}"


def continued(reply: Reply, new: Sequence[Message]) -> list[dict[str, Any]] | Fault:
    """The new messages as they follow an answer: recorded tool results first, in the order of the answer's calls."""
    count = next((place for place, message in enumerate(new) if message["role"] != "tool"), len(new))
    results, rest = new[:count], [dict(message) for message in new[count:]]
    if late := [message for message in rest if message["role"] == "tool"]:
        return Fault("tool_call_mismatch", f"{_names(late)}: results that come after another message")
    if not results and not reply.calls:
        return rest
    if not results:
        return Fault("tool_result_missing", f"the answer calls {_calls(reply.calls)}, the next message is no result")
    if not reply.calls:
        return Fault("tool_call_missing", f"results of {_names(results)} are recorded, the answer calls nothing")
    spliced = _spliced(reply.calls, results)
    return spliced if isinstance(spliced, Fault) else [*spliced, *rest]


def canonical_text(request: Mapping[str, Any]) -> str:
    """A request as it is stored."""
    return json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def texts_of(request: Mapping[str, Any]) -> Iterator[str]:
    """Every text in a request that can reach the prompt."""
    return _strings([request["messages"], request.get("tools")])


def _request(messages: Sequence[Message], tools: Sequence[Any] | None) -> dict[str, Any]:
    request = {"messages": list(messages)} | ({"tools": list(tools)} if tools else {})
    return json.loads(canonical_text(request))  # as it is stored: the order of keys can reach the prompt


def _spliced(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[dict[str, Any]] | Fault:
    waiting = list(results)
    spliced = []
    for place, call in enumerate(calls):
        found = next((result for result in waiting if result.get("name") == call.name), None)
        if found is None:
            break
        waiting.remove(found)
        spliced.append({**found, "tool_call_id": call_id(call, place)})
    if waiting or len(spliced) < len(calls):
        return Fault(
            "tool_call_mismatch", f"the answer calls {_calls(calls)}; results of {_names(results)} are recorded"
        )
    return spliced


def _calls(calls: Iterable[ToolCall]) -> list[str]:
    return [call.name for call in calls]


def _names(results: Iterable[Message]) -> list[Any]:
    return [result.get("name") for result in results]


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
