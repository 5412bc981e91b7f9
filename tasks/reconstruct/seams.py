"""White space that a server may have taken away, where the count cannot show it.

An answer whose count fits is refused if it fits as well once white space is put back beside the reasoning's markers:
`four.` and `four.\\n` are as many ids, and `\\n\\n` is one, as the end id that some providers do not bill. What is put
back is what the family's template writes there, and so its models sample. A provider of which one answer shows white
space at such a seam takes none away there; one most of whose answers miss some is believed only where it would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from schemas.answers import NATURAL_STOPS
from tasks.formats.format import Seams
from tasks.reconstruct.counting import USUAL, Counting
from tasks.reconstruct.row import Means, Row

TRIMMED = "trimmed_whitespace"
SPACES = ("\n", "\n\n", " ")  # what servers are known to trim at the markers and at the ends

_WINDOW = 160  # characters beside a seam, in which a space can change ids
_NAMES = Seams._fields
_OPTIONAL = "before_close"  # of what the templates write there, this is the one that models leave out at times


class _Seam(NamedTuple):
    text: str  # beside the seam
    filled: tuple[str, ...]  # the same with what may have been trimmed


def bare_seams(row: Row, seams: Seams) -> list[str]:
    """The seams at which the family's template writes white space, and the answer's text has none."""
    if row.output is not None or not row.reasoning:
        return []
    content = row.content or ""
    beside = {"after_open": row.reasoning[0], "after_close": content[:1]}
    if content or row.finish in NATURAL_STOPS:
        beside["before_close"] = row.reasoning[-1]
    habit = seams._asdict()
    return [name for name in _NAMES if habit[name] and beside.get(name) and not beside[name].isspace()]


def settle_seams(rows: Sequence[Row], rules: Mapping[str, Counting], means: Means) -> None:
    """Refuse accepted rows whose text may lack white space though their count fits."""
    spaced = {(row.provider, name) for row in rows for name in _spaced_seams(row)}
    trimming = _trimming(rows) - {provider for provider, _ in spaced}
    doubtful: list[tuple[Row, set[int], list[list[_Seam]]]] = []
    for row in rows:
        if row.fault or row.output is not None or row.completion is None:
            continue
        if row.provider in trimming:
            doubtful.append((row, {0}, _any_filled(row)))
            continue
        bare = [name for name in bare_seams(row, means.token_format.seams) if (row.provider, name) not in spaced]
        if bare and row.billed is None:
            row.refuse(TRIMMED, f"no count came, and {_told(bare)} may have been trimmed", TRIMMED)
        elif bare:
            counting = rules.get(row.provider, USUAL)
            doubtful.append((row, _hidden(row, counting), _habits_filled(row, bare, means.token_format.seams)))
    _refuse(doubtful, means)


def _spaced_seams(row: Row) -> Iterator[str]:
    """The seams at which a text has white space."""
    reasoning, content = row.reasoning or "", row.content or ""
    if row.output is None and reasoning:
        shown = (reasoning[:1], reasoning[-1:], content[:1])
        yield from (name for name, letter in zip(_NAMES, shown, strict=True) if letter.isspace())


def _trimming(rows: Sequence[Row]) -> set[str]:
    """Providers of which more answers miss white space than are as they were sampled."""
    balance: dict[str, int] = {}
    for row in rows:
        if row.output is None and row.reasoning and row.delta_class in (TRIMMED, "exact"):
            balance[row.provider] = balance.get(row.provider, 0) + (1 if row.delta_class == TRIMMED else -1)
    return {provider for provider, more in balance.items() if more > 0}


def _hidden(row: Row, counting: Counting) -> set[int]:
    """How many ids more a text may have, and its count fit all the same."""
    if counting.sure or row.finish not in NATURAL_STOPS:
        return {0}
    return {0, 1 if counting.rule.end_counted else -1}


def _habits_filled(row: Row, bare: Sequence[str], seams: Seams) -> list[list[_Seam]]:
    """Every way to put white space back: all that models always sample, with or without the rest."""
    habit = seams._asdict()
    filled = {name: _Seam(text, (joined,)) for name, text, joined in _ends(row, habit)}
    always = [filled[name] for name in bare if name != _OPTIONAL]
    ways = [always] if always else []
    return [*ways, [*always, filled[_OPTIONAL]]] if _OPTIONAL in bare else ways


def _any_filled(row: Row) -> list[list[_Seam]]:
    """Every way to put any white space back at the bare ends of reasoning and content."""
    seams: dict[str, list[str]] = {}
    for space in SPACES:
        for name, text, joined in _ends(row, dict.fromkeys((*_NAMES, "at_end"), space)):
            if text and not (text[0] if name.startswith("after") else text[-1]).isspace():
                seams.setdefault(name, [text]).append(joined)
    found = [_Seam(text, tuple(joined)) for text, *joined in seams.values()]
    return [list(some) for size in range(1, len(found) + 1) for some in combinations(found, size)]


def _ends(row: Row, spaces: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    reasoning, content = row.reasoning or "", row.content or ""
    for name, text in (("after_open", reasoning[:_WINDOW]), ("after_close", content[:_WINDOW])):
        yield name, text, spaces[name] + text
    for name, text in (("before_close", reasoning[-_WINDOW:]), ("at_end", content[-_WINDOW:])):
        yield name, text, text + spaces.get(name, "")


def _refuse(doubtful: Sequence[tuple[Row, set[int], list[list[_Seam]]]], means: Means) -> None:
    texts = {text for _, _, ways in doubtful for way in ways for seam in way for text in (seam.text, *seam.filled)}
    ordered = sorted(texts)
    length = dict(zip(ordered, map(len, means.codec.encode_arrays(ordered)), strict=True)) if ordered else {}
    for row, hidden, ways in doubtful:
        more = {
            sum(added)
            for way in ways
            for added in product(*({length[text] - length[seam.text] for text in seam.filled} for seam in way))
        }
        if found := sorted(more & hidden):
            unbilled = " and an end id that is not billed; if you know that it is billed, say so (counting)"
            row.refuse(TRIMMED, f"the count fits, but so it does with white space trimmed{unbilled * bool(found[-1])}")
            row.delta_class = TRIMMED


def _told(bare: Sequence[str]) -> str:
    return f"white space {' and '.join(name.replace('_', ' the ') for name in bare)} marker"
