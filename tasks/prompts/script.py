"""What an adapter makes of a row: a script of who speaks when, without the dataset's own answers.

Here are also the checks that all adapters share. Nothing is guessed: what is not exactly as it should be raises
Unusable, with a reason that can be counted. Ids and turns are left to tasks/prompts/conversation.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class Unusable(Exception):
    """A row that cannot go on: the class of fault, and what a person needs to see."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the dataset recorded. The target makes calls of its own; the arguments, canonical JSON where they can
    be told, only help to find whose a result is."""

    name: str
    call_id: str | None = None
    arguments: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. An assistant's is a place to fill in, with the calls that the results after it answered.

    `name` and `call_id` of a tool's result are what the dataset says about the call it answers, if it says it.
    """

    role: Role
    content: str = ""
    calls: tuple[Call, ...] = ()
    name: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation as recorded, and the tools that were offered in it."""

    messages: tuple[Message, ...]
    tools: list[dict[str, Any]] | None = None


def question(text: Any, what: str) -> Script:
    """The script of a row that is one question and no more."""
    return Script((Message("user", checked_text(text, what)),))


def checked_text(value: Any, what: str, empty: bool = False) -> str:
    """A text, character by character as it is.

    Args:
        value: what stands where a text should be.
        what: how to call it in an error.
        empty: whether it may have nothing in it.

    Raises:
        Unusable: content_not_text, empty_content or lone_surrogate.
    """
    if not isinstance(value, str):
        raise Unusable("content_not_text", f"{what} is {brief(value)}")
    if not empty and not value.strip():
        raise Unusable("empty_content", f"{what} is empty")
    if not is_unicode(value):
        raise Unusable("lone_surrogate", f"{what} has half of a surrogate pair")
    return value


def checked_list(value: Any, what: str) -> list[Any]:
    """A list with something in it.

    Raises:
        Unusable: no_messages.
    """
    if not isinstance(value, list) or not value:
        raise Unusable("no_messages", f"{what} must be a list with at least one message, it is {brief(value)}")
    return value


def checked_role(value: Any, roles: Mapping[str, Role], place: int) -> Role:
    """The role that a dataset's closed table gives for its own word.

    Raises:
        Unusable: unknown_role.
    """
    role = roles.get(value) if isinstance(value, str) else None
    if role is None:
        raise Unusable("unknown_role", f"message {place} has role {brief(value)}; known are {', '.join(roles)}")
    return role


def checked_call(value: Any, what: str) -> Call:
    """A recorded call: {"name": ..., "arguments": ...}, or OpenAI's {"id": ..., "function": {"name": ...}}.

    Raises:
        Unusable: invalid_function_call.
    """
    function = value.get("function") or value if isinstance(value, dict) else None
    told = function if isinstance(function, dict) else {}
    name = told.get("name")
    if not isinstance(name, str) or not name.strip() or not is_unicode(name):
        raise Unusable("invalid_function_call", f"{what} names no function: {brief(value)}")
    call_id = value.get("id")
    return Call(name, call_id if isinstance(call_id, str) and call_id else None, _arguments(told.get("arguments")))


def _arguments(value: Any) -> str | None:
    """Recorded arguments as canonical JSON, from an object or its text; none if they cannot be told."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        text = canonical_json(found) if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        return None
    return text if text and is_unicode(text) else None


def canonical_json(value: Any) -> str:
    """The JSON text that is hashed and stored: sorted keys, no spaces, no escapes that are not needed.

    Raises:
        ValueError: a number has no JSON form (NaN, infinity).
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def declarations(value: Any) -> list[dict[str, Any]] | None:
    """Tools as OpenAI declares them, from a list of declarations or of bare functions, or its JSON text.

    Raises:
        Unusable: invalid_tools.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as exc:
            raise Unusable("invalid_tools", f"the tools are not JSON: {exc}") from None
    if value is None or value in ("", []) or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, list):
        raise Unusable("invalid_tools", f"the tools are {brief(value)}, not a list")
    return [_declaration(tool, place) for place, tool in enumerate(value)]


def _declaration(tool: Any, place: int) -> dict[str, Any]:
    wrapped = isinstance(tool, dict) and "function" in tool
    function = tool["function"] if wrapped else tool
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise Unusable("invalid_tools", f"tool {place} has no name: {brief(tool)}")
    if wrapped and tool.get("type", "function") != "function":
        raise Unusable("invalid_tools", f"tool {place} is of type {brief(tool['type'])}, not a function")
    return {"type": "function", "function": function}


def is_unicode(text: str) -> bool:
    """False where a text has half of a surrogate pair, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def brief(value: Any) -> str:
    """A value in few characters, all of them ASCII."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
