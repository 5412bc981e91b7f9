"""Rows of an audit as a person reads them: token by token, with what is prompt, what is supervised, and the markers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.formats.codec import Codec

KEPT = "kept"
MOST_KEPT, MOST_REJECTED = 6, 8
_PROMPT_TAIL, _ANSWER_HEAD, _ANSWER_TAIL = 160, 320, 60  # ids shown
_LONGEST_CHARACTER = 4  # bytes, and so ids, of one character
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Piece:
    """One token, or the few tokens that make up one character; without ids it stands for what is left out."""

    text: str
    ids: tuple[int, ...]
    supervised: bool
    marker: bool = False


@dataclass(frozen=True)
class Sample:
    """A row and what the audit made of it: `verdict` is `KEPT` or the reason for its quarantine."""

    prompt_id: str
    verdict: str
    about: str
    detail: str
    pieces: tuple[Piece, ...]


def choose_samples(codec: Codec, kept: Iterable[pa.Table], quarantine: pa.Table) -> list[Sample]:
    """A few kept rows, of every kind that the first shards have, and a quarantined row for each reason.

    Args:
        codec: the target's tokenizer.
        kept: tables of SEQUENCES.
        quarantine: rows of QUARANTINE; those of other steps are left out, since they are no sequences.
    """
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for table in kept:
        for row in table.slice(0, 256).to_pylist():
            kinds.setdefault((row["dataset"], row["finish_reason"], row["provenance"], row["delta_class"]), row)
        if len(kinds) >= MOST_KEPT:
            break
    samples = [sample_of(codec, row, KEPT) for row in list(kinds.values())[:MOST_KEPT]]
    reasons: dict[str, Sample] = {}
    for row in quarantine.to_pylist():
        if row["step"] == "validate" and row["reason"] not in reasons and len(reasons) < MOST_REJECTED:
            reasons[row["reason"]] = sample_of(codec, json.loads(row["raw"]), row["reason"], row["detail"])
    return [*samples, *reasons.values()]


def sample_of(codec: Codec, row: Mapping[str, Any], verdict: str, detail: str = "") -> Sample:
    """A row of SEQUENCES, cut where it is long."""
    prompt, completion, mask = row["prompt_ids"], row["completion_ids"], row["loss_mask"]
    ids = [*prompt, *completion]
    cut = max(len(prompt) - _PROMPT_TAIL, 0)
    pieces = [*_left_out(cut, False), *pieces_of(codec, ids[cut : len(prompt)], mask[cut : len(prompt)])]
    rest, rest_mask = ids[len(prompt) :], mask[len(prompt) :]
    hidden = max(len(rest) - _ANSWER_HEAD - _ANSWER_TAIL, 0)
    head = _ANSWER_HEAD if hidden else len(rest)
    pieces += pieces_of(codec, rest[:head], rest_mask[:head])
    pieces += [*_left_out(hidden, True), *pieces_of(codec, rest[head + hidden :], rest_mask[head + hidden :])]
    facts = (row["dataset"], f"ended by {row['finish_reason']}", row["provenance"], row["delta_class"])
    lengths = f"{len(prompt)} + {len(completion)} ids, {sum(mask)} supervised"
    return Sample(row["prompt_id"], verdict, ", ".join((*facts, lengths)), detail, tuple(pieces))


def pieces_of(codec: Codec, ids: Sequence[int], mask: Sequence[int]) -> list[Piece]:
    """Ids as pieces; ids that make up one character only together are one piece."""
    names = {number: text for text, number in codec.markers.items()}
    pieces: list[Piece] = []
    at = 0
    while at < len(ids):
        supervised = at < len(mask) and bool(mask[at])
        if ids[at] in names or not 0 <= ids[at] < codec.vocab_size:
            text, end = names.get(ids[at], f"id {ids[at]}"), at + 1
            pieces.append(Piece(text, (ids[at],), supervised, marker=True))
        else:
            end = _whole_character(codec, ids, at, names)
            pieces.append(Piece(codec.decode([ids[at:end]])[0], tuple(ids[at:end]), supervised))
        at = end
    return pieces


def _whole_character(codec: Codec, ids: Sequence[int], at: int, names: Mapping[int, str]) -> int:
    for end in range(at + 1, min(at + _LONGEST_CHARACTER, len(ids)) + 1):
        if ids[end - 1] in names or not 0 <= ids[end - 1] < codec.vocab_size:
            break
        if _REPLACEMENT not in codec.decode([ids[at:end]])[0]:
            return end
    return at + 1


def _left_out(count: int, supervised: bool) -> list[Piece]:
    return [Piece(f"… {count:,} ids …", (), supervised)] if count else []
