"""Adapters of glaive-function-calling-v2, as published (one flat string per row) and in its ShareGPT shape.

Its calls are not JSON: the arguments stand in single quotes, with apostrophes inside. They are taken apart by the rules
below, never evaluated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tasks.prompts.adapters.dialogues import HUMAN_GPT, SHAREGPT_KEYS, refuse_other_keys, system_text
from tasks.prompts.adapters.shapes import Adapter, Column, Row
from tasks.prompts.script import (
    Call,
    Message,
    Role,
    Script,
    Unusable,
    brief,
    checked_call,
    checked_list,
    checked_role,
    checked_text,
    declarations,
)

SHAREGPT_ROLES: Mapping[str, Role] = {**HUMAN_GPT, "function_call": "assistant", "observation": "tool"}
FLAT_ROLES: Mapping[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}

_HEADS = "|".join(FLAT_ROLES)
_BLOCK = re.compile(rf"(?:\A\s*|(?:\r?\n){{3,}})({_HEADS}):[ ]?")
_HEAD_IN_BLOCK = re.compile(rf"^(?:{_HEADS}):", re.MULTILINE)
_LINE_ENDS = re.compile(r"(?:\r?\n)+\Z")
_ENDS = re.compile(r"(?:\s*<\|endoftext\|>)*\s*\Z")
_CALL = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*(?:,\s*"arguments"\s*:\s*(.*?))?\s*\}\s*\Z', re.DOTALL)
_MARK = "<functioncall>"


def function_call(text: str) -> tuple[str, Any]:
    """Name and arguments of one call, the text after `<functioncall>`.

    The arguments are JSON, or JSON in single quotes in which apostrophes may or may not be escaped.

    Raises:
        ValueError: it is no such call.
    """
    found = _CALL.match(text.strip())
    if not found:
        raise ValueError(f"no {{name, arguments}}: {brief(text)}")
    name, arguments = json.loads(found[1]), found[2]
    if arguments is None:
        return name, {}
    if len(arguments) >= 2 and arguments[0] == arguments[-1] == "'":
        quoted = arguments[1:-1]
        try:
            return name, json.loads(quoted, strict=False)
        except ValueError:
            return name, json.loads(quoted.replace("\\'", "'"), strict=False)
    value = json.loads(arguments, strict=False)
    return name, json.loads(value, strict=False) if isinstance(value, str) else value


def _flat(row: Row) -> Script:
    system, tools = _system_and_tools(row.get("system"))
    chat = checked_text(row.get("chat"), "column chat")
    pieces = _BLOCK.split(_LINE_ENDS.sub("", chat))
    if pieces[0].strip() or len(pieces) < 3:
        raise Unusable("unknown_role", f"the chat begins with {brief(chat[:40])}; known are {', '.join(FLAT_ROLES)}")
    blocks = zip(pieces[1::2], pieces[2::2], strict=True)
    return Script(system + tuple(_block(head, text, place) for place, (head, text) in enumerate(blocks)), tools)


def _block(head: str, text: str, place: int) -> Message:
    if _HEAD_IN_BLOCK.search(text):
        raise Unusable("ambiguous_turns", f"block {place} ({head}) has a line that begins like another turn")
    role = FLAT_ROLES[head]
    if role != "assistant":
        return Message(role, checked_text(text, f"block {place} ({head})", empty=role == "tool"))
    _, *calls = _ENDS.sub("", text).split(_MARK)
    return Message(role, calls=tuple(_recorded(call, place) for call in calls))


def _recorded(text: str, place: int) -> Call:
    try:
        name, arguments = function_call(_ENDS.sub("", text))
    except (ValueError, RecursionError) as exc:
        raise Unusable("invalid_function_call", f"block {place}: {exc}") from None
    return checked_call({"name": name, "arguments": arguments}, f"the call of block {place}")


def _system_and_tools(value: Any) -> tuple[tuple[Message, ...], list[dict[str, Any]] | None]:
    """The sentence before the declarations, and the declarations, which stand one after another."""
    if value is None:
        return (), None
    text = checked_text(value, "column system", empty=True).removeprefix("SYSTEM:").removeprefix(" ")
    brace = re.search(r"^\s*\{", text, re.MULTILINE)
    sentence, rest = (text[: brace.start()], text[brace.start() :]) if brace else (text, "")
    tools = _concatenated(rest)
    # with the list goes the dash that announced it
    sentence = re.sub(r"\s*-?\s*\Z", "", sentence) if tools else sentence.rstrip()
    return system_text({"system": sentence}), declarations(tools)


def _concatenated(text: str) -> list[Any]:
    decoder, found, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as exc:
            raise Unusable("invalid_tools", f"declaration {len(found)} of the system text is not JSON: {exc}") from None
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def _sharegpt(row: Row) -> Script:
    found = checked_list(row.get("conversations"), "conversations")
    messages = tuple(_sharegpt_message(item, place) for place, item in enumerate(found))
    return Script(system_text(row) + messages, declarations(row.get("tools")))


def _sharegpt_message(item: Any, place: int) -> Message:
    if not isinstance(item, dict):
        raise Unusable("message_not_object", f"message {place} is {brief(item)}")
    role = checked_role(item.get("from"), SHAREGPT_ROLES, place)
    if item["from"] == "function_call":
        return Message(role, calls=_json_calls(item.get("value"), place))
    if role == "assistant":
        return Message(role)
    refuse_other_keys(item, set(SHAREGPT_KEYS), place)
    return Message(role, checked_text(item.get("value"), f"the content of message {place}", empty=role == "tool"))


def _json_calls(value: Any, place: int) -> tuple[Call, ...]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as exc:
        raise Unusable("invalid_function_call", f"message {place} is not JSON: {exc}") from None
    calls = found if isinstance(found, list) else [found]
    if not calls:
        raise Unusable("invalid_function_call", f"message {place} has no call")
    return tuple(checked_call(call, f"a call of message {place}") for call in calls)


GLAIVE = Adapter(_flat, (Column("chat"), Column("system", optional=True)))
GLAIVE_SHAREGPT = Adapter(
    _sharegpt,
    (
        Column("conversations", "list", (SHAREGPT_KEYS,)),
        Column("tools", "list or text", optional=True),
        Column("system", optional=True),
    ),
    key="id",
)
