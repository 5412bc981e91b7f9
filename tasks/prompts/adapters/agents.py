"""Adapters of recorded software agents. What a command printed is a user's message, or a tool's if calls are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.prompts.adapters.dialogues import OPENAI, calls_of, optional_text
from tasks.prompts.adapters.shapes import Adapter, Column, Row
from tasks.prompts.script import Message, Role, Script, Unusable, brief, checked_list, checked_role, checked_text

SWE_AGENT_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "ai": "assistant"}


def _swe_agent(row: Row) -> Script:
    found = checked_list(row.get("trajectory"), "trajectory")
    return Script(tuple(_swe_agent_message(item, place) for place, item in enumerate(found)))


def _swe_agent_message(item: Any, place: int) -> Message:
    _refuse_bare(item, place)
    role = checked_role(item.get("role"), SWE_AGENT_ROLES, place)
    if role == "assistant":
        return Message(role)  # `mask` is about training on the recorded text, which is not kept anyway
    column = "system_prompt" if role == "system" else "text"
    return Message(role, checked_text(item.get(column), f"the {column} of message {place}"))


def _swe_smith(row: Row) -> Script:
    text = row.get("messages")
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as exc:
        raise Unusable("invalid_json", f"column messages is not JSON: {exc}") from None
    messages = checked_list(found, "messages")
    return Script(tuple(_swe_smith_message(item, place) for place, item in enumerate(messages)))


def _swe_smith_message(item: Any, place: int) -> Message:
    _refuse_bare(item, place)
    role = checked_role(item.get("role"), OPENAI, place)
    if role == "assistant":
        return Message(role, calls=calls_of(item, place))
    content = _joined(item.get("content"), place)
    ids = item.get("tool_call_ids")
    if isinstance(ids, list) and len(ids) > 1:
        raise Unusable("parallel_tool_results", f"message {place} is the result of {len(ids)} calls at once")
    call_id = ids[0] if isinstance(ids, list) and ids else item.get("tool_call_id")
    checked = checked_text(content, f"the content of message {place}", empty=role == "tool")
    return Message(role, checked, (), None, optional_text(call_id))


def _joined(content: Any, place: int) -> Any:
    """The text of a content that is a list of parts, with nothing between them."""
    if not isinstance(content, list):
        return content
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise Unusable("content_not_text", f"message {place} has a part that is no text: {brief(part)}")
    return "".join(part["text"] for part in content)


def _refuse_bare(item: Any, place: int) -> None:
    if not isinstance(item, dict):
        raise Unusable("message_not_object", f"message {place} is {brief(item)}")


SWE_AGENT = Adapter(_swe_agent, (Column("trajectory", "list", (("role", "text"),)),), key="instance_id")
SWE_SMITH = Adapter(_swe_smith, (Column("messages", "list or text"),), key="traj_id", hub_split="tool")
