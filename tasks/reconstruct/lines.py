"""Lines of a file of raw answers as rows of ANSWERS: a response body each, or {"request": …, "response": …}."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.answers import NATURAL_STOPS
from schemas.errors import PromptSourceError
from tasks.formats.format import Fault
from tasks.reconstruct.asked import Request, read_request
from tasks.responses import Asked, Response, answer_row, read_responses

ENGINE = "api"  # stands for the provider where a body names none

_BOM = b"\xef\xbb\xbf"
_BINARY = {
    b"\x1f\x8b": ("packed with gzip", "unpack it first"),
    b"PAR1": ("a Parquet file", "write its rows as JSON lines"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16", "save it as UTF-8"),
}


@dataclass(frozen=True)
class Entry:
    """An answer of a line: a row of ANSWERS, or why there is none."""

    line: int  # from 1, blank ones counted
    choice: int
    row: dict[str, Any] | None
    fault: Fault | None = None
    unknown: tuple[str, ...] = ()  # keys of its request that are not understood


def read_entries(path: Path) -> Iterator[Entry]:
    """The answers of a file, one line at a time.

    Raises:
        PromptSourceError: the file cannot be read, or has no line.
    """
    filled = False
    try:
        if path.is_fifo():
            raise PromptSourceError(f"{path} is a pipe, and answers are read twice; write them into a file")
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    _refuse_binary(path, line)
                if text := line.removeprefix(_BOM).strip():
                    filled = True
                    yield from _entries(number, text)
    except OSError as exc:
        raise PromptSourceError(f"{path} cannot be read: {exc.strerror}") from exc
    if not filled:
        raise PromptSourceError(f"{path} is empty; one response body a line is wanted")


def _refuse_binary(path: Path, start: bytes) -> None:
    for magic, (name, remedy) in _BINARY.items():
        if start.startswith(magic):
            raise PromptSourceError(f"{path} is {name}; one response body a line is wanted: {remedy}")


def _entries(number: int, line: bytes) -> list[Entry]:
    request: Any = None
    body: Any = line
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        pass  # which fault that is, read_responses says
    else:
        body = parsed
        if isinstance(parsed, Mapping) and "response" in parsed:
            request, body = parsed.get("request"), parsed["response"]
    asked = read_request(request)
    found = read_responses(body)
    return [
        Entry(number, choice, None, answer)
        if isinstance(answer, Fault)
        else (Entry(number, choice, None, asked) if isinstance(asked, Fault) else _entry(number, choice, answer, asked))
        for choice, answer in enumerate(found)
    ]


def _entry(number: int, choice: int, answer: Response, asked: Request) -> Entry:
    if asked.stops and answer.output_ids is None and answer.finish_reason in NATURAL_STOPS:
        detail = "the request has stop strings, and the text does not show whether the model ended or one was met"
        return Entry(number, choice, None, Fault("stop_strings_asked", detail), asked.unknown)
    name = hashlib.sha256(f"{number}:{choice}".encode()).hexdigest()[:32]
    question = Asked(prompt_id=name, dataset="answers", engine=ENGINE, request=asked.written, max_tokens=asked.limit)
    return Entry(number, choice, answer_row(answer, question), None, asked.unknown)
