"""Adapters of datasets whose row is a list of messages, each with a speaker and a text.

What differs from one dataset to another is the name of the column, the two keys, and the closed table of roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    is_unicode,
)

OPENAI_KEYS = ("role", "content")
SHAREGPT_KEYS = ("from", "value")

MESSAGES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
OPENAI: Mapping[str, Role] = {**MESSAGES, "tool": "tool"}
HUMAN_GPT: Mapping[str, Role] = {"system": "system", "human": "user", "gpt": "assistant"}
SHAREGPT: Mapping[str, Role] = {
    **HUMAN_GPT,
    "user": "user",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
}

_RESULT_KEYS = {"name", "tool_call_id"}  # beside role and content, in a tool's message


def dialogue(
    column: str,
    roles: Mapping[str, Role],
    *keys: tuple[str, str],
    key: str = "id",
    system: bool = False,
    dropped: frozenset[str] = frozenset(),
    hub_config: str = "",
    hub_split: str = "train",
) -> Adapter:
    """An adapter for a list of messages without tools.

    Args:
        column: where the list is.
        roles: what each of the dataset's words for a speaker means.
        keys: pairs of keys that a message may have: the speaker's and the text's.
        key: the column of a row's own key.
        system: whether a column `system` may hold the system text.
        dropped: columns that are left out on purpose.
        hub_config: the Hub configuration to take.
        hub_split: the Hub split to take.
    """

    def to_script(row: Row) -> Script:
        found = checked_list(row.get(column), column)
        return Script(system_text(row if system else {}) + messages_of(found, roles, *keys))

    columns = (Column(column, "list", keys), *([Column("system", optional=True)] if system else []))
    return Adapter(to_script, columns, key, dropped, hub_config, hub_split)


def messages_of(found: list[Any], roles: Mapping[str, Role], *keys: tuple[str, str]) -> tuple[Message, ...]:
    """The messages of a list. What the assistant said is not looked at."""
    messages = []
    for place, item in enumerate(found):
        speaker, text = _keys_of(item, place, keys)
        role = checked_role(item.get(speaker), roles, place)
        if role == "assistant":
            messages.append(Message(role))
            continue
        refuse_other_keys(item, {speaker, text}, place)
        messages.append(Message(role, checked_text(item.get(text), f"the content of message {place}")))
    return tuple(messages)


def refuse_other_keys(item: dict[str, Any], known: set[str], place: int) -> None:
    """A key such as images changes what the model would see; one without a value does not."""
    if extra := [key for key, value in item.items() if key not in known and value is not None]:
        raise Unusable("unknown_message_key", f"message {place} has the key {brief(extra[0])} beside its text")


def system_text(row: Row) -> tuple[Message, ...]:
    """The system message of a row that has a column for it; an empty one is none."""
    value = row.get("system")
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    return (Message("system", checked_text(value, "column system")),)


def _keys_of(item: Any, place: int, keys: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    if not isinstance(item, dict):
        raise Unusable("message_not_object", f"message {place} is {brief(item)}")
    for pair in keys:
        if item.get(pair[0]) is not None:
            return pair
    return keys[0]


def _openai(row: Row) -> Script:
    found = checked_list(row.get("messages"), "messages")
    return Script(
        tuple(_openai_message(item, place) for place, item in enumerate(found)), declarations(row.get("tools"))
    )


def _openai_message(item: Any, place: int) -> Message:
    speaker, text = _keys_of(item, place, (OPENAI_KEYS,))
    role = checked_role(item.get(speaker), OPENAI, place)
    if role == "assistant":
        return Message(role, calls=calls_of(item, place))
    refuse_other_keys(item, {speaker, text} | (_RESULT_KEYS if role == "tool" else set()), place)
    content = checked_text(item.get(text), f"the content of message {place}", empty=role == "tool")
    return Message(role, content, (), optional_text(item.get("name")), optional_text(item.get("tool_call_id")))


def calls_of(item: dict[str, Any], place: int) -> tuple[Call, ...]:
    """The calls that an assistant's message recorded."""
    calls = item.get("tool_calls") or ([item["function_call"]] if item.get("function_call") else [])
    if not isinstance(calls, list):
        raise Unusable("invalid_function_call", f"the tool_calls of message {place} are {brief(calls)}")
    return tuple(checked_call(call, f"a call of message {place}") for call in calls)


def optional_text(value: Any) -> str | None:
    """A name or an id, if there is one."""
    return value if isinstance(value, str) and value and is_unicode(value) else None


JSONL = Adapter(
    _openai, (Column("messages", "list", (OPENAI_KEYS,)), Column("tools", "list or text", optional=True)), key="id"
)
SHAREGPT_ANY = dialogue("conversations", SHAREGPT, SHAREGPT_KEYS, OPENAI_KEYS, system=True)
MIXTURE_OF_THOUGHTS = dialogue("messages", MESSAGES, OPENAI_KEYS, key="", hub_config="all")
# Its system text orders markers of a format that the target does not have.
OPENTHOUGHTS_114K = dialogue(
    "conversations",
    MESSAGES,
    SHAREGPT_KEYS,
    key="",
    dropped=frozenset({"system"}),
    hub_config="default",
)
OPENTHOUGHTS3 = dialogue("conversations", HUMAN_GPT, SHAREGPT_KEYS, key="")
ULTRACHAT = dialogue("messages", MESSAGES, OPENAI_KEYS, key="prompt_id", hub_split="train_sft")
PERFECTBLEND = dialogue("conversations", HUMAN_GPT, SHAREGPT_KEYS, key="")
DEEPSWE_KIMI = dialogue("messages", MESSAGES, OPENAI_KEYS, key="")
