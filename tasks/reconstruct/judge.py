"""The verdict of the billed count on each answer's candidates: exactly one must fit, to the id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from schemas.answers import NATURAL_STOPS
from tasks.formats.format import Reading, Seams
from tasks.reconstruct.counting import USUAL, Counting, Observation
from tasks.reconstruct.diagnosis import Unfitting, delta_classes
from tasks.reconstruct.finish import CUT
from tasks.reconstruct.row import Candidate, Means, Row
from tasks.reconstruct.seams import TRIMMED, bare_seams

_USUALLY_CLOSED = "missing_close_before_tools"


def observations(rows: Iterable[Row], seams: Seams) -> list[Observation]:
    """Answers whose counts tell how their provider counts: ended by themselves, one candidate, no sign of damage."""
    return [
        Observation(
            row.provider,
            _length(row, row.candidates[0]),
            row.completion_tokens,
            _reasoning_tokens(row),
            whole=not bare_seams(row, seams),
        )
        for row in rows
        if row.fault is None
        and len(row.candidates) == 1
        and row.candidates[0].ended
        and row.completion_tokens is not None
        and not looks_padded(row.candidates[0].reading)
    ]


def looks_padded(reading: Reading) -> bool:
    """Whether spaces stand on both sides of a marker, as a slow tokenizer puts them there: one id more, which looks
    like an end id that is not billed. The marker may have come written out in the text."""
    return any(
        isinstance(before, str) and before.endswith(" ") and isinstance(after, str) and after.startswith(" ")
        for before, marker, after in zip(reading.parts, reading.parts[1:], reading.parts[2:], strict=False)
        if isinstance(marker, int)
    )


def settle_counts(rows: Sequence[Row], rules: Mapping[str, Counting], means: Means) -> None:
    """Choose every row's ids by its billed count; rows that no candidate fits get the class that explains why."""
    unfitting: list[Unfitting] = []
    for row in rows:
        if row.fault:
            continue
        counting = rules.get(row.provider, USUAL)
        if row.output is not None:
            _settle_returned(row, counting)
        elif _billed(row, counting, row.candidates[0]) is None:
            _settle_unverified(row, means.spec.unverified == "keep")
        elif not _settle_rebuilt(row, counting):
            unfitting.append(Unfitting(row, row.delta or 0))
    for (row, delta), name in zip(unfitting, delta_classes(unfitting, rows, means), strict=True):
        row.refuse(name, f"{delta + (row.billed or 0)} ids rebuilt, {row.billed} were billed ({delta:+d})", name)


def _settle_returned(row: Row, counting: Counting) -> None:
    """Returned ids are the ids, if their number is the billed one."""
    assert row.output is not None
    (candidate,) = row.candidates
    row.billed = _billed(row, counting, candidate)
    row.completion = row.output
    if row.billed is None:
        row.delta_class = "unverified"
        return
    row.delta = len(row.output) - row.billed
    row.delta_class = "unexplained" if row.delta else "exact"
    if row.delta:
        row.refuse("billed_count_differs", f"{len(row.output)} completion ids, {row.billed} were billed")


def _settle_unverified(row: Row, keep: bool) -> None:
    """Take the only reading; of a tool section right after the reasoning the one with the close marker, which models
    sample before it as a rule."""
    candidates = _distinct(row.candidates)
    doubt = _doubt(candidates) if len(candidates) > 1 else ""
    if doubt and not (keep and doubt == _USUALLY_CLOSED and len(candidates) == 2):
        row.refuse(doubt, f"the text can be read in {len(candidates)} ways, and no count decides", doubt)
        return
    row.delta_class = "unverified"
    _accept(row, candidates[0])
    if not keep:
        row.refuse("unverified", "no count of ids came with the text (reconstruction.unverified: quarantine)")


def _settle_rebuilt(row: Row, counting: Counting) -> bool:
    """Take the one candidate that fits; False if none does, and the row has the delta of the likeliest."""
    fitting = _distinct([c for c in row.candidates if _fits(row, counting, c)])
    if not fitting:
        likeliest = row.candidates[0]
        row.billed = _billed(row, counting, likeliest)
        row.delta = len(likeliest.ids) - (row.billed or 0)
        return False
    row.billed, row.delta = len(fitting[0].ids), 0
    if len(fitting) > 1:
        doubt = _doubt(fitting)
        row.refuse(doubt, f"{len(fitting)} readings of the text have the billed {row.billed} ids", doubt)
        return True
    if not counting.sure and _trimmed_otherwise(row, counting.otherwise(), fitting[0]):
        detail = "white space before the reasoning was sampled, or it was not and the end id is not billed"
        row.refuse(TRIMMED, f"{detail}: if you know which, say so (counting)", TRIMMED)
        return True
    row.delta_class = "exact"
    _accept(row, fitting[0])
    return True


def _trimmed_otherwise(row: Row, otherwise: Counting, taken: Candidate) -> bool:
    """Whether a reading that differs by white space fits if the end id is counted otherwise."""
    return any(
        TRIMMED in (taken.reading.doubt, other.reading.doubt) and _fits(row, otherwise, other)
        for other in row.candidates
        if other is not taken
    )


def _fits(row: Row, counting: Counting, candidate: Candidate) -> bool:
    """Whether a candidate has the billed number of ids, and ends as it can have ended under the request's limit."""
    if len(candidate.ids) != _billed(row, counting, candidate):
        return False
    if row.finish not in NATURAL_STOPS or row.max_tokens is None:
        return True
    if candidate.ended:
        rivals = any(not other.ended for other in row.candidates)
        return not rivals or len(candidate.ids) <= row.max_tokens
    return len(candidate.ids) >= row.max_tokens and not looks_padded(candidate.reading)


def _accept(row: Row, candidate: Candidate) -> None:
    row.completion = candidate.ids
    row.candidates = [candidate]
    if not candidate.ended:
        row.finish = CUT


def _billed(row: Row, counting: Counting, candidate: Candidate) -> int | None:
    return counting.billed(row.completion_tokens, _reasoning_tokens(row), candidate.ended)


def _reasoning_tokens(row: Row) -> int | None:
    """As billed; 0 where the text shows that there was no reasoning."""
    unsaid = row.reasoning_tokens is None and row.output is None and not row.reasoning
    return 0 if unsaid else row.reasoning_tokens


def _length(row: Row, candidate: Candidate) -> int:
    return len(candidate.ids) if row.output is None else len(row.output)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    found: list[Candidate] = []
    for candidate in candidates:
        if not any(np.array_equal(candidate.ids, other.ids) for other in found):
            found.append(candidate)
    return found


def _doubt(candidates: Sequence[Candidate]) -> str:
    return next((c.reading.doubt for c in candidates if c.reading.doubt), "unexplained")
