"""Why an answer's rebuilt ids are not as many as were billed: the delta class of rows that no reading fits.

A class is a label for people and for the report, never a repair: what a server trimmed or padded cannot be known, only
that the count fits the suspicion.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from tasks.formats.format import Fault, Reading, Said
from tasks.reconstruct.finish import CUT
from tasks.reconstruct.rebuild import encode_readings
from tasks.reconstruct.row import Means, Row
from tasks.reconstruct.seams import SPACES

_LONG_RUN = re.compile(r"\S{25001}|\s{25001}")  # Kimi's tokenizer cuts such runs where the merges do not
_SEAM = 160  # characters beside the close marker, in which a trimmed space can change ids
_CHARACTER = 4  # most ids of one character, bytes of which are lost in a cut
_NEARLY = 0.02  # share of ids, or two of them, that sampling other than the tokenizer's own ids is believed to change


class Unfitting(NamedTuple):
    """A row that no reading fits, and by how many ids the likeliest one misses: rebuilt minus billed."""

    row: Row
    delta: int


def delta_classes(unfitting: Sequence[Unfitting], rows: Iterable[Row], means: Means) -> list[str]:
    """The class of each unfitting row.

    Args:
        unfitting: whose class is asked for.
        rows: all rows; a provider of which one has white space at an end of its texts trims none.
        means: what reconstruction is made with.
    """
    if not unfitting:
        return []
    keeps = {row.provider for row in rows if _has_space_at_a_seam(row)}
    padded = _padded(unfitting, means)
    trimmed = [
        found and row.provider not in keeps
        for found, (row, _) in zip(_trimmed(unfitting, means), unfitting, strict=True)
    ]
    return [
        _delta_class(row, delta, is_padded, is_trimmed, means)
        for (row, delta), is_padded, is_trimmed in zip(unfitting, padded, trimmed, strict=True)
    ]


def _delta_class(row: Row, delta: int, padded: bool, trimmed: bool, means: Means) -> str:
    text = f"{row.reasoning or ''}\n{row.content or ''}"
    if padded:
        return "padded_markers"
    if delta < 0 and not row.reasoning and (row.reasoning_tokens or row.opening == "open"):
        return "reasoning_not_returned"
    if _LONG_RUN.search(text):
        return "long_run"
    if row.finish == CUT and -_CHARACTER < delta < 0 and not text.isascii():
        return "cut_inside_character"
    if trimmed:
        return "trimmed_whitespace"
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        return "not_nfc"
    if any(c.reading.doubt == "marker_text_in_answer" for c in row.candidates) or any(
        marker in text for marker, number in means.codec.markers.items() if number not in means.token_format.reply_ids
    ):
        return "marker_text_in_answer"
    return "not_canonical" if abs(delta) <= max(2, _NEARLY * (row.billed or 0)) else "unexplained"


def _has_space_at_a_seam(row: Row) -> bool:
    reasoning, content = row.reasoning or "", row.content or ""
    return reasoning[-1:].isspace() or content[:1].isspace() or content[-1:].isspace()


def _padded(unfitting: Sequence[Unfitting], means: Means) -> list[bool]:
    """Whether the count fits once the spaces on both sides of every marker are gone."""
    names = "|".join(re.escape(name) for name, n in means.codec.markers.items() if n in means.token_format.reply_ids)
    beside_marker = re.compile(f" ({names}) ") if names else None
    found = [False] * len(unfitting)
    owners: list[int] = []
    readings: list[Reading] = []
    for place, (row, delta) in enumerate(unfitting):
        candidate = row.candidates[0]
        bare = _unpadded(row.said(candidate.ended), beside_marker)
        if delta <= 0 or bare is None:
            continue
        read = means.token_format.readings(bare, row.opening)
        if not isinstance(read, Fault):
            owners += [place] * len(read)
            readings += read
    for place, ids in zip(owners, encode_readings(readings, means.codec), strict=True):
        found[place] |= len(ids) == unfitting[place].row.billed
    return found


def _unpadded(said: Said, beside_marker: re.Pattern[str] | None) -> Said | None:
    """The text without padding, None if it has none."""
    reasoning, content = said.reasoning, said.content
    if reasoning and content and reasoning.endswith(" ") and content.startswith(" "):
        reasoning, content = reasoning[:-1], content[1:]
    if content and beside_marker:
        content = beside_marker.sub(r"\1", f" {content} ")
        content = content.removeprefix(" ").removesuffix(" ")
    bare = replace(said, reasoning=reasoning, content=content)
    return None if bare == said else bare


def _trimmed(unfitting: Sequence[Unfitting], means: Means) -> list[bool]:
    """Whether white space at the seams, where the text has none, would make up for the missing ids."""
    pieces: dict[str, int] = {}
    wanted: list[list[tuple[str, list[str]]]] = []
    for row, delta in unfitting:
        seams = _bare_seams(row) if delta < 0 else []
        wanted.append(seams)
        for text, changed in seams:
            for piece in (text, *changed):
                pieces.setdefault(piece, len(pieces))
    lengths = [len(ids) for ids in means.codec.encode(list(pieces))] if pieces else []
    found = []
    for (_, delta), seams in zip(unfitting, wanted, strict=True):
        more = [{0, *(lengths[pieces[c]] - lengths[pieces[text]] for c in changed)} for text, changed in seams]
        found.append(any(sum(added) == -delta for added in product(*more)))
    return found


def _bare_seams(row: Row) -> list[tuple[str, list[str]]]:
    """Ends of the text where white space may have been trimmed: the text there, and with what may have been."""
    reasoning, content = row.reasoning or "", row.content or ""
    tail, head, last = reasoning[-_SEAM:], content[:_SEAM], content[-_SEAM:]
    seams = []
    if tail and not tail[-1].isspace():
        seams.append((tail, [tail + space for space in SPACES]))
    if head and not head[0].isspace():
        seams.append((head, [space + head for space in SPACES]))
    if last and not last[-1].isspace():
        seams.append((last, [last + space for space in SPACES]))
    return seams
