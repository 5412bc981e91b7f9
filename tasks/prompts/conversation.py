"""A script as turns to regenerate: one per assistant turn, each with what is new since the turn before, and its id.

An id says all that the target will have been given by the dataset up to there, so equal beginnings of two
conversations have equal ids. Recorded results of tools get the name of the call they answered, never a guessed one; and
where several calls of one function were made at once, also what theirs was called with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.prompts.script import Call, Message, Script, Unusable, brief, canonical_json, is_unicode


@dataclass(frozen=True, slots=True)
class Turn:
    """What is new since the turn before, as canonical JSON, and the id of all up to here."""

    prompt_id: str
    messages: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one row, and all that its user says, also beyond the turns that are taken."""

    dataset: str
    source_key: str
    tools: str | None
    turns: tuple[Turn, ...]
    user_turns: tuple[str, ...] = ()

    @property
    def root_id(self) -> str:
        """The id of the first turn, which all conversations with this beginning share."""
        return self.turns[0].prompt_id

    @property
    def last_id(self) -> str:
        """The id of the last turn, which says the whole conversation."""
        return self.turns[-1].prompt_id


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot go on: where it stood, the class of fault, what a person needs to see, and its bytes."""

    dataset: str
    source_key: str
    reason: str
    detail: str
    raw: bytes


def conversation_of(script: Script, dataset: str, source_key: str, most_turns: int) -> Conversation:
    """The turns of a script; `most_turns` of 0 takes all.

    Raises:
        Unusable: the script has no turn to regenerate, or one that nobody asked for.
    """
    turns = _turns(script.messages)
    user_turns = tuple(message.content for message in script.messages if message.role == "user")
    tools = _canonical_tools(script.tools)
    taken = turns[:most_turns] if most_turns else turns
    return Conversation(dataset, source_key, tools, tuple(_with_ids(taken, tools)), user_turns)


def _with_ids(turns: list[list[dict[str, str]]], tools: str | None) -> Iterator[Turn]:
    parent = "null"
    for new in turns:
        messages = canonical_json(new)
        # this is the canonical JSON of [parent_id, messages, tools]
        whole = f"[{parent},{messages},{tools or 'null'}]"
        prompt_id = hashlib.sha256(whole.encode()).hexdigest()[:32]
        yield Turn(prompt_id, messages)
        parent = f'"{prompt_id}"'


def _canonical_tools(tools: list[dict[str, Any]] | None) -> str | None:
    if not tools:
        return None
    try:
        text = canonical_json(tools)
    except ValueError as exc:
        raise Unusable("invalid_tools", f"the tools have no JSON form: {exc}") from None
    if not is_unicode(text):
        raise Unusable("lone_surrogate", "the tools have half of a surrogate pair")
    return text


def _turns(messages: tuple[Message, ...]) -> list[list[dict[str, str]]]:
    """What is new before each assistant turn; several assistant messages in a row are one turn."""
    turns: list[list[dict[str, str]]] = []
    new: list[dict[str, str]] = []
    calls = _OpenCalls()
    for place, message in enumerate(messages):
        match message.role:
            case "assistant":
                if not turns and all(before["role"] == "system" for before in new):
                    raise Unusable("starts_with_assistant", f"message {place} is the assistant's, before any user's")
                if new:
                    turns.append(_asked(new, place))
                    new = []
                    calls.close()
                calls.add(message.calls)
            case "tool":
                new.append({"role": "tool", **calls.answered_by(message, place), "content": message.content})
            case role:
                new.append({"role": role, "content": message.content})
    calls.close()
    if new:
        turns.append(_asked(new, len(messages)))
    if not turns:
        raise Unusable("no_messages", "the conversation has no message")
    return turns


def _asked(new: list[dict[str, str]], place: int) -> list[dict[str, str]]:
    if all(message["role"] == "system" for message in new):
        raise Unusable("turn_without_user", f"before message {place} only the system speaks, nobody asks")
    return new


@dataclass
class _OpenCalls:
    """The calls of the last assistant turn, and which of them were answered."""

    calls: list[Call] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)  # names of the functions that were called
    by_order: bool = False

    def add(self, calls: tuple[Call, ...]) -> None:
        self.calls += calls
        self.recorded += [call.name for call in calls]

    def answered_by(self, result: Message, place: int) -> dict[str, str]:
        """The name of the function that this result is of, and its arguments if the name alone does not tell."""
        call = self._of_id(result, place) or self._of_name(result) or self._next(result)
        if call is None and not self.recorded and result.name:
            return {"name": result.name}  # the dataset names the function, though not the call
        if call is None or (result.name and result.name != call.name):
            raise Unusable(
                "tool_result_without_call",
                f"message {place} is a tool's result (name {brief(result.name)}, call {brief(result.call_id)}) that "
                f"answers none of the calls before it that are still open ({', '.join(c.name for c in self.calls)})",
            )
        self.calls.remove(call)
        if call.arguments is None or self.recorded.count(call.name) == 1:
            return {"name": call.name}
        return {"name": call.name, "arguments": call.arguments}

    def close(self) -> None:
        """Called before the next assistant turn: order tells which result is whose only if none is missing."""
        if self.by_order and self.calls:
            names = ", ".join(call.name for call in self.calls)
            raise Unusable("tool_results_missing", f"calls without a result ({names}), and no ids to tell whose it is")
        self.calls, self.recorded, self.by_order = [], [], False

    def _of_id(self, result: Message, place: int) -> Call | None:
        if result.call_id is None or not any(call.call_id for call in self.calls):
            return None
        for call in self.calls:
            if call.call_id == result.call_id:
                return call
        raise Unusable("tool_result_without_call", f"message {place} answers call {brief(result.call_id)}: not made")

    def _of_name(self, result: Message) -> Call | None:
        return next((call for call in self.calls if call.name == result.name), None)

    def _next(self, result: Message) -> Call | None:
        if not self.calls or result.name:
            return None
        self.by_order = True
        return self.calls[0]
