"""What answers are judged with when there is no prepared target: a folder with a tokenizer, or nothing at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.answers import NATURAL_STOPS
from schemas.errors import TargetError, TokenFormatError
from schemas.ragged import Ids
from schemas.sections import ReconstructionSpec
from tasks.formats.codec import Codec, load_codec
from tasks.formats.format import Fault, TokenFormat
from tasks.formats.plain import NAME as PLAIN
from tasks.formats.registry import bind, recognise
from tasks.reconstruct.asked import THINKING
from tasks.reconstruct.counting import USUAL, Counting
from tasks.reconstruct.finish import named_end
from tasks.reconstruct.row import Means, Render, Row, StandIn, rows_of
from tasks.target.text import Template, load_template, render_text, template_variables

_SWITCHES = ("thinking", "enable_thinking")
EFFORT = "reasoning_effort"  # sent to models whose template does not read it, too


def means_from(folder: Path, name: str, thinking: bool, spec: ReconstructionSpec) -> Means:
    """The tokenizer and, if there is one, the chat template of a folder.

    Args:
        folder: tokenizer.json or tiktoken.model, tokenizer_config.json, chat_template.jinja.
        name: of the token format, or auto.
        thinking: whether thinking was on, where no prompt says so.
        spec: the policies.

    Raises:
        TokenFormatError: there is no tokenizer, or it is not the format's.
    """
    codec = load_codec(folder)
    try:
        template = load_template(folder)
    except TargetError as exc:
        template = None
        print(f"note: prompts are not rendered, and taken to open as --thinking says: {exc}", file=sys.stderr)
    if name == "auto":
        name = recognise(codec, template.text if template else "")
    token_format = bind(name, codec, _end_ids(folder, codec, name))
    return Means(
        token_format,
        codec,
        spec,
        _renderer(template, codec, thinking) if template else None,
        _least_prompt(token_format, codec, thinking),
    )


def count_only(answers: pa.Table, rules: Mapping[str, Counting]) -> list[Row]:
    """What can be said without a tokenizer: whether returned ids are as many as were billed."""
    rows = rows_of(answers)
    for row in rows:
        finish = named_end(row.finish_reason, False)
        if row.output is None:
            row.refuse("tokenizer_missing", "text cannot be turned into ids without --tokenizer")
        elif isinstance(finish, Fault):
            row.refuse(*finish)
        else:
            row.finish, row.completion = finish, row.output
            counting = rules.get(row.provider, USUAL)
            row.billed = counting.billed(row.completion_tokens, row.reasoning_tokens, finish in NATURAL_STOPS)
            row.delta = None if row.billed is None else len(row.output) - row.billed
            row.delta_class = "unverified" if row.delta is None else "unexplained" if row.delta else "exact"
            if row.delta:
                row.refuse("billed_count_differs", f"{len(row.output)} completion ids, {row.billed} were billed")
    return rows


def _renderer(template: Template, codec: Codec, thinking: bool) -> Render:
    known = template_variables(template)
    switchable = [name for name in _SWITCHES if name in known]
    warned: set[str] = set()

    def _warn(name: str, what: str) -> None:
        if name not in warned:
            warned.add(name)
            print(f"warning: {what}", file=sys.stderr)

    def render(request: str) -> list[int] | None:
        sent: dict[str, Any] = json.loads(request)
        if "messages" not in sent:
            return None
        asked = sent.get("chat_template_kwargs", {})
        for name in sorted(asked.keys() - known - warned - {EFFORT}):
            _warn(name, f"the chat template has no variable {name}: it has no effect")
        wanted = sent.get(THINKING, thinking)
        if THINKING in sent and wanted != thinking and not switchable:
            _warn(THINKING, f"requests ask for thinking {wanted}, which the chat template cannot be told")
        switches: dict[str, Any] = dict.fromkeys(switchable, wanted)
        switches |= {name: value for name, value in asked.items() if name in known}
        messages, tools = sent["messages"], sent.get("tools")
        text = render_text(template.text, messages, tools, switches, template.tokens, chat=True)
        return codec.encode_prompt([text])[0]

    return render


def _least_prompt(token_format: TokenFormat, codec: Codec, thinking: bool) -> StandIn:
    """What a prompt ends with, thinking as its request says, or as `thinking` where that is silent."""
    tails = {thinking: stand_in(token_format, codec, thinking)}

    def least(request: str) -> Ids:
        sent = json.loads(request)
        wanted = bool(sent.get("chat_template_kwargs", {}).get(token_format.switch, sent.get(THINKING, thinking)))
        if wanted not in tails:
            tails[wanted] = stand_in(token_format, codec, wanted)
        return tails[wanted]

    return least


def stand_in(token_format: TokenFormat, codec: Codec, thinking: bool) -> Ids:
    """The least that a prompt can end with which opens an answer as this format's do."""
    wanted = token_format.opens_in_prompt[thinking]
    for ids in ([], *([number] for number in codec.markers.values())):
        tail = np.array(ids, np.int32)
        if token_format.opening(tail) == wanted:
            return tail
    raise TokenFormatError(
        f"no marker of the tokenizer opens an answer as {token_format.name} does with thinking {thinking}: give "
        "answers with their prompt ids"
    )


def _end_ids(folder: Path, codec: Codec, name: str) -> list[int] | None:
    """What the folder's configuration says ends a turn; None if it says nothing.

    The tokenizer's own eos_token is asked for `plain` only, which must be told: of other families it is often another.
    """
    for file in ("generation_config.json", "config.json"):
        found = _read(folder / file).get("eos_token_id")
        if found is not None:
            return sorted({found} if isinstance(found, int) else set(found))
    token = _read(folder / "tokenizer_config.json").get("eos_token") if name == PLAIN else None
    text = token.get("content") if isinstance(token, dict) else token
    return [codec.markers[text]] if isinstance(text, str) and text in codec.markers else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as exc:
        raise TokenFormatError(f"{path} is damaged ({exc}); fetch it anew") from exc
    return content if isinstance(content, dict) else {}
