"""Recorded tool results, given to the calls that the target made anew.

A call gets the result that was recorded for the same function. Where a function was called several times at once, equal
arguments tell whose result is whose, then elimination; and where the recording does not say what its calls were made
with, their order. The target's arguments can differ from the recorded call's, whose result is used all the same if
there is no other it could be: only a live tool could know better.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.formats.format import Fault, ToolCall

ARGUMENTS = "arguments"  # of a recorded result: canonical JSON of what its call was made with; never sent

Message = Mapping[str, Any]


def spliced(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[dict[str, Any]] | Fault:
    """A tool's message for every call, in the order of the calls.

    Args:
        calls: of the new answer, with JSON for arguments and an id each.
        results: recorded, each with the name of the function that it is of.

    Returns:
        The messages; or why there is a result without a call, a call without a result, or no telling whose one is.
    """
    if fault := _unequal(calls, results):
        return fault
    made: defaultdict[str, list[int]] = defaultdict(list)
    for place, call in enumerate(calls):
        made[call.name].append(place)
    found: dict[int, Message] = {}
    for name, places in made.items():
        matched = _matched([calls[place] for place in places], [one for one in results if one.get("name") == name])
        if isinstance(matched, Fault):
            return matched
        found |= dict(zip(places, matched, strict=True))
    return [_message(found[place], call) for place, call in enumerate(calls)]


def _unequal(calls: Sequence[ToolCall], results: Sequence[Message]) -> Fault | None:
    made, recorded = [call.name for call in calls], [result.get("name") for result in results]
    without_result, without_call = _left(made, recorded), _left(recorded, made)
    told = f"the answer calls {made or 'nothing'}; results of {recorded or 'nothing'} are recorded"
    if without_result and without_call:
        return Fault("tool_call_mismatch", told)
    if without_result:
        return Fault("tool_result_missing", f"{told}: none for {without_result}")
    return Fault("tool_call_missing", f"{told}: no call for {without_call}") if without_call else None


def _matched(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[Message] | Fault:
    """The result of each of several calls of one function."""
    if len(calls) == 1:
        return list(results)
    if not any(ARGUMENTS in result for result in results):
        return list(results)
    waiting = list(results)
    found: list[Message | None] = []
    for call in calls:
        equal = next((one for one in waiting if one.get(ARGUMENTS) == _canonical(call.arguments)), None)
        found.append(equal)
        if equal is not None:
            waiting = [one for one in waiting if one is not equal]
    if len(waiting) > 1:
        made = [call.arguments for call, one in zip(calls, found, strict=True) if one is None]
        return Fault(
            "tool_results_ambiguous",
            f"{calls[0].name} is called {len(calls)} times at once, and {made} were recorded as "
            f"{[one.get(ARGUMENTS) for one in waiting]}: no telling whose result is whose",
        )
    return [waiting.pop() if one is None else one for one in found]


def _message(result: Message, call: ToolCall) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != ARGUMENTS} | {"tool_call_id": call.call_id}


def _canonical(arguments: str) -> str:
    return json.dumps(json.loads(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _left(names: Iterable[Any], taken: Iterable[Any]) -> list[Any]:
    waiting = list(names)
    for name in taken:
        if name in waiting:
            waiting.remove(name)
    return waiting
