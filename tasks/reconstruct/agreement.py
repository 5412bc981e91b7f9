"""Ids against text: the ids of every answer must decode to the text that came with it.

Of returned ids this shows a server whose text and ids are of different answers. Rebuilt ids are decoded where the
vocabulary lacks bytes; others are canonical by construction, and the audit decodes them all. Text never changes an id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tasks.formats.format import Fault, Part
from tasks.reconstruct.finish import CUT
from tasks.reconstruct.rebuild import REPLACEMENT
from tasks.reconstruct.row import Means, Row

_CLOSE = "</think>"  # in every family that closes its reasoning
_SHOWN = 40  # characters on each side of where two texts part


def settle_texts(rows: Sequence[Row], means: Means) -> None:
    """Give every row that came with text the text its ids stand for; one whose ids say something else gets a fault."""
    there = [row for row in rows if row.fault is None and row.completion is not None and row.has_text]
    names = {number: name for name, number in means.codec.markers.items()}
    for row in there:
        if row.output is None:
            row.answer_text = _written(row.candidates[0].reading.parts, names)
    # calls that were parsed out of a text are not in it
    checked = [row for row in there if row.tool_calls is None and not (row.output is None and means.codec.lossless)]
    decoded = means.codec.decode([row.candidates[0].ids if row.output is None else row.output for row in checked])
    for row, text in zip(checked, decoded, strict=True):
        if row.output is None:
            _compare_rebuilt(row, text)
        else:
            _compare_returned(row, text, names, means)


def settle_reasoning(rows: Sequence[Row], means: Means) -> None:
    """Refuse rebuilt answers whose reasoning and content the count cannot tell apart, or without reasoning though some
    was billed: beside the count perhaps, so that it fits."""
    for row in rows:
        if row.fault or row.output is not None or row.completion is None:
            continue
        if row.reasoning and not row.content and row.finish != CUT and row.opening != "closed":
            detail = (
                "all of the text is reasoning: a server that joined the answer to it sends the same with this count"
            )
            row.refuse("answer_not_split", detail, "unexplained")
            continue
        if row.reasoning:
            continue
        if row.reasoning is None and row.reasoning_tokens is None and _closes_out_of_sight(row, means):
            detail = f"the count has room for a {_CLOSE} that the text does not show: its place cannot be known"
            row.refuse("reasoning_not_returned", detail, "reasoning_not_returned")
        elif row.reasoning_tokens and not means.token_format.reply(row.completion, row.opening).reasoning:
            detail = f"{row.reasoning_tokens} reasoning tokens were billed, and the text has none"
            row.refuse("reasoning_not_returned", detail, "reasoning_not_returned")


def _closes_out_of_sight(row: Row, means: Means) -> bool:
    """Whether a close marker was put before a text without one: a server that joined reasoning and content sends the
    same text with the same count."""
    close = means.codec.markers.get(_CLOSE)
    return close in row.candidates[0].reading.parts and _CLOSE not in (row.content or "")


def _compare_rebuilt(row: Row, text: str) -> None:
    if text != row.answer_text:
        row.refuse("text_differs", _difference(text, row.answer_text or ""))


def _compare_returned(row: Row, text: str, names: Mapping[int, str], means: Means) -> None:
    """Servers leave out the end id, strip other special ids or not, and hold back a character that a limit cut."""
    row.answer_text = text
    completion = row.completion.tolist() if row.completion is not None else []
    ended = bool(completion) and completion[-1] in means.token_format.end_ids
    said = f"{row.reasoning or ''}{row.content or ''}"
    readings = means.token_format.readings(row.said(ended), row.opening)
    ways = [reading.parts for reading in readings] if not isinstance(readings, Fault) else []
    end = completion[-1:] if ended else []
    shown = text.removesuffix(names.get(end[0], "")) if end else text
    if text == said or _says(shown, said, ways, end, names, row):
        return
    hidden = means.codec.special_ids.union(end)
    shown = means.codec.decode([[number for number in completion if number not in hidden]])[0]
    if not _says(shown, said, ways, hidden, names, row):
        row.refuse("text_differs", _difference(text, said))


def _says(
    text: str, said: str, ways: Sequence[Sequence[Part]], hidden: Collection[int], names: Mapping[int, str], row: Row
) -> bool:
    """Whether ids say what came as text, either as it stands or with the markers that a server takes out put back.

    White space does not count: servers trim it at markers and at the ends, and the ids are right all the same.
    """
    whole = [said, *(_written([part for part in way if part not in hidden], names) for way in ways)]
    return _kept(text, row) in {_kept(way, row) for way in whole}


def _kept(text: str, row: Row) -> str:
    text = "".join(text.split())
    return text.rstrip(REPLACEMENT) if row.finish == CUT else text


def _written(parts: Sequence[Part], names: Mapping[int, str]) -> str:
    return "".join(part if isinstance(part, str) else names[part] for part in parts)


def _difference(ids_say: str, came: str) -> str:
    place = next(
        (n for n, (a, b) in enumerate(zip(ids_say, came, strict=False)) if a != b), min(len(ids_say), len(came))
    )
    begin = max(place - _SHOWN, 0)
    return (
        f"from character {place} on the ids say {ids_say[begin : place + _SHOWN]!r}, "
        f"the text {came[begin : place + _SHOWN]!r}"
    )
