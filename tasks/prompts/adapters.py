"""The bytes of a dataset as prompts: one adapter per format, one closed table of roles, one outcome per line.

Lines are read as bytes and contents are kept as they are (CRLF, combining marks, white space). Nothing is guessed: a
line that is not exactly a prompt is Rejected with a reason that can be counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
HUMAN_EVAL_REQUEST = "Complete the following Python function.\n\n```python\n{code}\n```"

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with a user's turn.

    `messages` is canonical JSON, and `prompt_id` the first 32 hex digits of its SHA-256.
    """

    prompt_id: str
    dataset: str
    source_key: str
    messages: str
    user_turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot go on: where it stood, the class of fault, what a person needs to see, and its bytes."""

    dataset: str
    source_key: str
    reason: str
    detail: str
    raw: bytes


def parse_rows(content: bytes, dataset: str, adapter: str) -> Iterator[Prompt | Rejected]:
    """One outcome for every line of a dataset, whatever its bytes are.

    A last line without a line feed counts if it is whole. A byte order mark at the start of the file is no content.
    """
    lines = content.removeprefix(_BOM).split(b"\n")
    unfinished = lines.pop()
    for number, line in enumerate(lines, start=1):
        yield _parse_row(line, number, dataset, ADAPTERS[adapter], torn=False)
    if unfinished:
        yield _parse_row(unfinished, len(lines) + 1, dataset, ADAPTERS[adapter], torn=True)


def canonical_messages(messages: list[dict[str, str]]) -> str:
    """Messages as the JSON text that is hashed and stored: sorted keys, no spaces, no escapes that are not needed."""
    return json.dumps(messages, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def prompt_id_of(messages: str) -> str:
    """The id of a prompt, from its canonical messages."""
    return hashlib.sha256(messages.encode()).hexdigest()[:32]


class _Unusable(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class _Adapter:
    key: str
    to_messages: Callable[[dict[str, Any]], Any]


def _parse_row(line: bytes, number: int, dataset: str, adapter: _Adapter, torn: bool) -> Prompt | Rejected:
    key = f"line {number}"
    try:
        row = _decode(line, torn)
        key = _source_key(row.get(adapter.key), key)
        messages = _checked(adapter.to_messages(row))
    except _Unusable as exc:
        return Rejected(dataset, key, exc.reason, f"line {number}: {exc.detail}", line)
    text = canonical_messages(messages)
    turns = tuple(message["content"] for message in messages if message["role"] == "user")
    return Prompt(prompt_id_of(text), dataset, key, text, turns)


def _decode(line: bytes, torn: bool) -> dict[str, Any]:
    if not line.strip():
        raise _Unusable("blank_line", "the line is blank")
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError) as exc:
        if torn:
            raise _Unusable("torn_last_line", "the file ends in the middle of a row") from None
        if isinstance(exc, UnicodeDecodeError):
            raise _Unusable("invalid_utf8", f"byte {exc.start} of the line is not UTF-8") from None
        raise _Unusable("invalid_json", str(exc)) from None
    if not isinstance(row, dict):
        raise _Unusable("not_an_object", f"the line is a JSON {type(row).__name__}, not an object")
    return row


def _source_key(value: Any, otherwise: str) -> str:
    if isinstance(value, str) and value.strip() and _is_unicode(value):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(messages: Any) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise _Unusable("no_messages", f"messages must be a list with at least one message, it is {_brief(messages)}")
    checked = [_checked_message(message, place) for place, message in enumerate(messages)]
    if checked[-1]["role"] != "user":
        raise _Unusable(
            "last_turn_not_user", f"the last turn is from the {checked[-1]['role']}; a prompt ends with the user's turn"
        )
    return checked


def _checked_message(message: Any, place: int) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _Unusable("message_not_object", f"message {place} is {_brief(message)}")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise _Unusable("unknown_role", f"message {place} has role {_brief(role)}; known are {', '.join(ROLES)}")
    # A key such as tool_calls changes what the model would see; one without a value does not.
    if extra := [key for key, value in message.items() if key not in ("role", "content") and value is not None]:
        raise _Unusable(
            "unknown_message_key", f"message {place} has the key {_brief(extra[0])} beside role and content"
        )
    if not isinstance(content, str):
        raise _Unusable("content_not_text", f"the content of message {place} is {_brief(content)}")
    if not content.strip():
        raise _Unusable("empty_content", f"the content of message {place} is empty")
    if not _is_unicode(content):
        raise _Unusable("lone_surrogate", f"the content of message {place} has half of a surrogate pair")
    return {"role": role, "content": content}


def _jsonl(row: dict[str, Any]) -> Any:
    if row.get("tools"):
        raise _Unusable("tools_not_supported", "the row offers tools, which would change the prompt")
    return row.get("messages")


def _human_eval(row: dict[str, Any]) -> Any:
    code = row.get("prompt")
    if isinstance(code, str) and code.strip():
        code = HUMAN_EVAL_REQUEST.format(code=code.rstrip())
    return [{"role": "user", "content": code}]


def _mt_bench(row: dict[str, Any]) -> Any:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise _Unusable("no_messages", f"turns must be a list with at least one question, it is {_brief(turns)}")
    return [{"role": "user", "content": turns[0]}]


def _brief(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


ADAPTERS = {
    "jsonl": _Adapter("id", _jsonl),
    "human_eval": _Adapter("task_id", _human_eval),
    "mt_bench": _Adapter("question_id", _mt_bench),
}
