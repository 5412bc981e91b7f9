"""The figures that need texts: what the ids of an answer say, and what its conversation asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from schemas.ragged import Ragged
from tasks.formats.codec import Codec
from tasks.overlap import Asked, BenchmarkIndex
from tasks.validate.duplicates import Conversation, NearDuplicates
from tasks.validate.figures import Figures

REPLACEMENT = "\ufffd"
_ESCAPED = "\\ufffd"  # a JSON writer may have kept to ASCII
_SHOWN = 60


class Request(NamedTuple):
    """What a request asks: the user's turns, and what stands around them (system text and tools)."""

    user_turns: tuple[str, ...]
    frame: str


def decoded(sequences: pa.Table, codec: Codec, rows: Sequence[int]) -> dict[int, str]:
    """The text of the answers of these rows, markers written out."""
    ids = Ragged.of(sequences["completion_ids"]).rows()
    return dict(zip(rows, codec.decode([ids[row] for row in rows]), strict=True))


def add_texts(found: Figures, sequences: pa.Table, answers: Mapping[int, str]) -> None:
    """The rules `text_differs` and `replacement_character`, for the rows whose answers were decoded."""
    returned, requests = sequences["answer_text"].to_pylist(), sequences["request"].to_pylist()
    for row, text in answers.items():
        said = returned[row]
        if said is not None and text != said:
            found.mark("text_differs", row, _difference(text, said))
        if REPLACEMENT in text and REPLACEMENT not in requests[row] and _ESCAPED not in requests[row].lower():
            found.mark("replacement_character", row, f"at character {text.index(REPLACEMENT)} of {len(text)}")


def read_requests(found: Figures, sequences: pa.Table) -> dict[int, Request]:
    """The requests of a shard by row, and the rule `unreadable_request` for those that are none."""
    requests: dict[int, Request] = {}
    for row, cell in enumerate(sequences["request"].to_pylist()):
        try:
            requests[row] = read_request(cell)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            found.mark("unreadable_request", row, f"{type(exc).__name__}: {exc}")
    return requests


def add_overlaps(
    found: Figures,
    sequences: pa.Table,
    requests: Mapping[int, Request],
    benchmark: BenchmarkIndex | None,
    duplicates: NearDuplicates | None,
) -> None:
    """The rules `benchmark_overlap` and `near_duplicate`, for rows that keep all other rules.

    Only those: of two that are alike the later one is to go, unless the earlier one is faulty.
    """
    prompt_ids, root_ids = sequences["prompt_id"].to_pylist(), sequences["root_id"].to_pylist()
    conversations: dict[int, Conversation] = {}
    for row, request in requests.items():
        if benchmark and (overlap := benchmark.overlap(Asked("", prompt_ids[row], request.user_turns))):
            found.mark("benchmark_overlap", row, f"{overlap.how} as benchmark prompt {overlap.benchmark}")
        else:
            said = "\n".join(request.user_turns)
            conversations[row] = Conversation(prompt_ids[row], root_ids[row], said, request.frame)
    if duplicates is None:
        return
    alike = duplicates.first_alike(list(conversations.values()))
    for row, first in zip(conversations, alike, strict=True):
        if first is not None:
            found.mark("near_duplicate", row, f"the conversation of prompt {first} is nearly the same")


def read_request(cell: str) -> Request:
    """A `request` cell taken apart; a content of several parts is its texts, one a line.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: it is not JSON, or JSON of another shape.
        RecursionError: it is nested too deep.
    """
    sent: Any = json.loads(cell)
    user: list[str] = []
    system: list[str] = []
    for message in sent["messages"]:
        if message["role"] == "user":
            user.append(_text(message["content"]))
        elif message["role"] == "system":
            system.append(_text(message["content"]))
    tools = json.dumps(sent["tools"], sort_keys=True) if sent.get("tools") else ""
    return Request(tuple(user), "\n".join((*system, tools)))


def benchmark_questions(prompts: pa.Table) -> Iterator[Asked]:
    """What a table of prompts (contract PROMPTS) asks, a conversation after another.

    A row has only what is new since the turn before, so the rows of a conversation are put together.
    """
    turns: dict[str, tuple[str, ...]] = {}  # by prompt id: what the user has said by then
    parents: set[str] = set()
    names: dict[str, str] = {}
    columns = ["prompt_id", "parent_id", "turn", "dataset", "source_key", "messages"]
    for row in sorted(prompts.select(columns).to_pylist(), key=lambda row: row["turn"]):
        new = tuple(_text(m["content"]) for m in json.loads(row["messages"]) if m["role"] == "user")
        turns[row["prompt_id"]] = (*turns.get(row["parent_id"], ()), *new)
        parents.add(row["parent_id"])
        names[row["prompt_id"]] = f"{row['dataset']} {row['source_key']}"
    for prompt_id, said in turns.items():
        if prompt_id not in parents:
            yield Asked(names[prompt_id], prompt_id, said)


def _text(content: Any) -> str:
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    return (content or "").encode("utf-8", "replace").decode()  # JSON can hold half of a surrogate pair


def _difference(text: str, said: str) -> str:
    at = next((n for n, (one, other) in enumerate(zip(text, said, strict=False)) if one != other), None)
    at = min(len(text), len(said)) if at is None else at
    shown = (text[at : at + _SHOWN], said[at : at + _SHOWN])
    return f"at character {at} the ids say {shown[0]!r}, the text {shown[1]!r}"
