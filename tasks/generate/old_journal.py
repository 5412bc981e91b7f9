"""Answers from journals of older versions, as raw bodies that can be kept among the paid ones.

A line is JSON, with or without a checksum before it: a batch `[key, [answer, ...]]`, or one answer. An answer counts
its tokens (`completion_tokens`, in it or in its `meta_info`), or has `output_ids` alone. What it does not say stays
unsaid in the body; nothing is counted on its behalf.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from tasks.artifacts.files import sha256_file

DIALECT = "sglang"  # of the bodies: the shape of SGLang's /generate

_CHECKED = re.compile(rb"([0-9a-f]{8}) (?=[\[{])")


@dataclass(frozen=True)
class OldAnswer:
    """One answer; `body` has the shape of SGLang's /generate."""

    prompt_id: str
    body: bytes
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass
class Imported:
    """What a journal held."""

    path: Path
    sha256: str
    answers: list[OldAnswer] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)  # line number, reason
    repeated: int = 0  # answers of a prompt that had one already; the first stays


def import_journal(path: Path) -> Imported:
    """Read an old journal; damaged lines are skipped and named, lines after them are kept. The file stays as it is."""
    found, seen = Imported(path, sha256_file(path)), set[str]()
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                answers = [_answer(answer) for answer in _answers_of(line)]
            except ValueError as exc:
                found.skipped.append((number, str(exc)))
                continue
            for answer in answers:
                if answer.prompt_id in seen:
                    found.repeated += 1
                else:
                    seen.add(answer.prompt_id)
                    found.answers.append(answer)
    return found


def _answers_of(line: bytes) -> list[Any]:
    if not line.endswith(b"\n"):
        raise ValueError("torn: the line has no end")
    body = line.strip()
    if checked := _CHECKED.match(body):
        body = body[checked.end() :]
        if int(checked[1], 16) != crc32(body):
            raise ValueError("the checksum differs")
    try:
        content = json.loads(body)
    except ValueError as exc:
        raise ValueError(f"no JSON: {exc}") from exc
    if isinstance(content, dict):
        return [content]
    if isinstance(content, list) and len(content) == 2 and isinstance(content[1], list):
        return content[1]
    raise ValueError("neither an answer nor a batch of answers")


def _answer(answer: Any) -> OldAnswer:
    if not isinstance(answer, Mapping):
        raise ValueError("an answer is no object")
    prompt_id, ids = answer.get("prompt_id", answer.get("id")), answer.get("output_ids")
    if not isinstance(prompt_id, str) or not prompt_id:
        raise ValueError("an answer does not name its prompt")
    if not isinstance(ids, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ValueError(f"the answer of {prompt_id} has no list of output_ids")
    given = answer.get("meta_info")
    meta = dict(given) if isinstance(given, Mapping) else {}
    for name in ("prompt_tokens", "completion_tokens"):
        if name in answer:
            meta[name] = answer[name]
    if isinstance(reason := answer.get("finish_reason"), str):
        meta["finish_reason"] = {"type": reason}
    elif isinstance(reason, Mapping):
        meta["finish_reason"] = dict(reason)
    if (counted := _count(meta, "completion_tokens", prompt_id)) is not None and counted != len(ids):
        raise ValueError(f"the answer of {prompt_id} counts {counted} tokens and has {len(ids)} ids")
    body = {"output_ids": ids, "meta_info": meta} | ({"text": answer["text"]} if "text" in answer else {})
    plain = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return OldAnswer(
        prompt_id, plain.encode("utf-8", "surrogatepass"), _count(meta, "prompt_tokens", prompt_id), counted
    )


def _count(meta: Mapping[str, Any], name: str, prompt_id: str) -> int | None:
    value = meta.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"the answer of {prompt_id} has {name} {value!r}")
    return value
