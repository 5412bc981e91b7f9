"""Ids of answers: those that were returned, or those of every way in which the text can be read.

All text of a table is encoded in one call. Nothing is trimmed, added or normalised; which reading is the right one is
left to the billed count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from schemas.answers import NATURAL_STOPS
from schemas.ragged import Ids
from tasks.formats.codec import Codec
from tasks.formats.format import Fault, Reading, TokenFormat
from tasks.reconstruct.finish import fills_limit, named_end
from tasks.reconstruct.row import Candidate, Means, Row
from tasks.responses import stopped_at

REPLACEMENT = "\ufffd"
_NO_IDS: Ids = np.empty(0, np.int32)


def settle_candidates(rows: Sequence[Row], means: Means) -> None:
    """Find how every answer ended and the ids it may have; one that cannot have any gets a fault."""
    waiting: list[tuple[Row, Reading, bool]] = []
    for row in rows:
        if row.fault:
            continue
        _settle_end(row, means)
        if row.fault or row.output is not None:
            continue
        waiting += [(row, reading, ended) for reading, ended in _readings(row, means.token_format)]
    encoded = encode_readings([reading for _, reading, _ in waiting], means.codec)
    for (row, reading, ended), ids in zip(waiting, encoded, strict=True):
        row.candidates.append(Candidate(ids, reading, ended))


def encode_readings(readings: Sequence[Reading], codec: Codec) -> list[Ids]:
    """The ids of each reading; a part that several share is encoded once."""
    places: dict[str, int] = {}
    for reading in readings:
        for part in reading.parts:
            if isinstance(part, str):
                places.setdefault(part, len(places))
    encoded = codec.encode_arrays(list(places)) if places else []
    return [
        np.concatenate([_NO_IDS, *(encoded[places[p]] if isinstance(p, str) else _one(p) for p in reading.parts)])
        for reading in readings
    ]


@lru_cache
def _one(marker: int) -> Ids:
    return np.array([marker], np.int32)


def _settle_end(row: Row, means: Means) -> None:
    """How the answer ended, and the candidate of returned ids."""
    output = row.output
    ends = means.token_format.end_ids
    ended = output is not None and len(output) > 0 and int(output[-1]) in ends
    spelt = {stopped_at(text) for text, number in means.codec.markers.items() if number in ends}
    finish = named_end("stop" if row.finish_reason in spelt else row.finish_reason, ended)
    if isinstance(finish, Fault):
        row.refuse(*finish)
        return
    row.finish = finish
    if output is None:
        return
    if finish in NATURAL_STOPS and not ended and row.max_tokens is not None and len(output) >= row.max_tokens:
        row.finish = "length"  # the ids show that the limit cut it
    row.candidates.append(Candidate(_NO_IDS, Reading(()), ended))


def _readings(row: Row, token_format: TokenFormat) -> list[tuple[Reading, bool]]:
    """Every way to read a text; with the ways of a cut where a limit may have been reached unsaid."""
    if row.tool_calls is not None:
        detail = "the server parsed the calls out of the text and sent no ids: ask it without tools, or for ids"
        row.refuse("parsed_tool_calls", detail, "parsed_tool_calls")
        return []
    if any(text and REPLACEMENT in text for text in (row.reasoning, row.content)) and REPLACEMENT not in row.request:
        detail = "the answer has U+FFFD, which stands for bytes that were lost; the request has none"
        row.refuse("replacement_character", detail, "cut_inside_character")
        return []
    ended = row.finish in NATURAL_STOPS
    read = token_format.readings(row.said(ended), row.opening)
    if isinstance(read, Fault):
        if ended and not row.reasoning and row.opening == "open":
            detail = f"the prompt opens the reasoning, and none came: {read.detail}"
            row.refuse("reasoning_not_returned", detail, "reasoning_not_returned")
        else:
            row.refuse(*read)
        return []
    found = [(reading, ended) for reading in read]
    if fills_limit(row.finish, row.max_tokens, row.completion_tokens, row.reasoning_tokens):
        cut = token_format.readings(row.said(False), row.opening)
        found += [] if isinstance(cut, Fault) else [(reading, False) for reading in cut]
    return found
