"""What a fake server answers: a function of the prompt alone, so that a test can say what must come back.

Tokens are words, so that the text can be read; a vocabulary of a real tokenizer may be given instead, and the folder of
a target whose template and tokenizer then make the ids of chats' prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Piece = tuple[int, str]
_FEWEST, _SPREAD = 12, 24  # tokens of an answer


@dataclass(frozen=True)
class Script:
    """One prompt, as messages or as ids, and the answer that only exactly it gets."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    prompt_ids: list[int]
    ids: list[int]
    text: str  # of the ids without the end


@dataclass(frozen=True)
class Vocabulary:
    """Pieces of text whose ids, in any order, are what the tokenizer gives for the joined text."""

    pieces: tuple[Piece, ...] = tuple((1000 + number, f" w{number}") for number in range(997))
    end: Piece = (2, "")
    close: Piece = (3, "")  # between reasoning and content
    prompt_ids: Callable[[dict[str, Any]], list[int]] | None = None  # of a chat
    scripts: tuple[Script, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read {"pieces": [[id, text], ...], "end": id, "close": id, "target": folder or null}, or {"scripts": []}."""
        said = json.loads(path.read_text())
        if "scripts" in said:
            return cls(scripts=tuple(Script(**script) for script in said["scripts"]))
        pieces = tuple((number, text) for number, text in said["pieces"])
        prompt_ids = _renderer(Path(said["target"])) if said.get("target") else None
        return cls(pieces, (said["end"], ""), (said["close"], ""), prompt_ids)


@dataclass(frozen=True)
class Answer:
    """One answer; `reasoning` is null where the prompt's answer has none."""

    prompt_ids: list[int]
    reasoning: list[str] | None
    content: list[str]
    ids: list[int] = field(repr=False)
    finish_reason: str = "stop"

    @property
    def text(self) -> str:
        """The content as one string."""
        return "".join(self.content)

    @property
    def reasoning_text(self) -> str | None:
        """The reasoning as one string."""
        return None if self.reasoning is None else "".join(self.reasoning)


def key_of(body: dict[str, Any]) -> str:
    """Names a request by what it asks, whatever the limits and the sampling: equal prompts have equal keys."""
    asked = [body.get(name) for name in ("input_ids", "text", "prompt", "messages", "tools")]
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def answer_to(body: dict[str, Any], vocabulary: Vocabulary, reasoning: bool = False) -> Answer:
    """The answer to a request of any dialect."""
    if vocabulary.scripts:
        return _scripted(body, vocabulary.scripts)
    noise = hashlib.shake_128(key_of(body).encode()).digest(2 * (_FEWEST + _SPREAD) + 1)
    length = _FEWEST + noise[0] % _SPREAD
    numbers = [int.from_bytes(noise[1 + 2 * i : 3 + 2 * i]) for i in range(length)]
    pieces = [vocabulary.pieces[number % len(vocabulary.pieces)] for number in numbers]
    thought = length // 3 if reasoning else 0
    if reasoning:
        pieces.insert(thought, vocabulary.close)
    pieces.append(vocabulary.end)
    kept = pieces[: _limit(body)]
    words = [text for _, text in kept]
    return Answer(
        vocabulary.prompt_ids(body) if vocabulary.prompt_ids and "messages" in body else _prompt_ids(body),
        words[:thought] if reasoning else None,
        [word for word in words[thought:] if word],
        [number for number, _ in kept],
        "stop" if len(kept) == len(pieces) else "length",
    )


def _scripted(body: dict[str, Any], scripts: tuple[Script, ...]) -> Answer:
    given = _prompt_ids(body)
    for script in scripts:
        told = body.get("messages") == script.messages and body.get("tools", []) == script.tools
        if told or ("messages" not in body and given == script.prompt_ids):
            return Answer(script.prompt_ids, None, [script.text], script.ids)
    return Answer(given, None, ["this prompt is in no script"], [0])


def _renderer(folder: Path) -> Callable[[dict[str, Any]], list[int]]:
    from tasks.formats.codec import load_codec
    from tasks.target.text import load_template, render_text

    template, codec = load_template(folder), load_codec(folder)

    def prompt_ids(body: dict[str, Any]) -> list[int]:
        text = render_text(template.text, body["messages"], body.get("tools"), {}, template.tokens)
        return codec.encode_prompt([text])[0]

    return prompt_ids


def _limit(body: dict[str, Any]) -> int:
    sampling = body.get("sampling_params") or {}
    limits = (sampling.get("max_new_tokens"), body.get("max_tokens"), body.get("max_completion_tokens"))
    return next((limit for limit in limits if limit is not None), 128)


def _prompt_ids(body: dict[str, Any]) -> list[int]:
    given = body.get("input_ids") or body.get("prompt")
    if isinstance(given, list) and given and isinstance(given[0], int):
        return given
    text = body.get("text") or given or json.dumps([body.get("messages"), body.get("tools")], ensure_ascii=False)
    return [10 + len(word) for word in str(text).split()]
