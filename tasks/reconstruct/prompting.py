"""Prompt ids as the server saw them: those that it returned, or the rendered request; and what they do to reasoning.

Text of a marker inside a message is found here too: a server that reads it as a control token sees another prompt than
one that does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import TemplateRefused
from tasks.formats.codec import Codec
from tasks.reconstruct.row import Means, Render, Row

_SPECIAL = frozenset("\\.+*?()|[]{}^$")


def settle_prompts(rows: Sequence[Row], means: Means) -> None:
    """Find every row's prompt ids and how they open the answer; a row whose prompt cannot be trusted gets a fault."""
    if means.spec.markers_in_prompt == "quarantine":
        _refuse_markers(rows, means.codec)
    there: list[Row] = []
    for row in rows:
        if not row.fault and row.prompt is None and means.render is not None:
            _render(row, means.render)
        if row.fault:
            continue
        if (row.prompt is None or not len(row.prompt)) and means.stand_in is not None:
            row.prompt = means.stand_in(row.request)
            there.append(row)
        elif row.prompt is not None and len(row.prompt):
            if row.prompt_tokens is None or len(row.prompt) == row.prompt_tokens:
                there.append(row)
            else:
                detail = f"{len(row.prompt)} prompt ids, the engine counted {row.prompt_tokens}"
                row.refuse("prompt_count_differs", detail)
        else:
            row.refuse("prompt_ids_missing", "the engine sent no prompt ids, and there is no template to render")
    _settle_openings(there, means)


def _settle_openings(rows: Sequence[Row], means: Means) -> None:
    known = set(means.token_format.opens_in_prompt.values())
    openings = means.token_format.openings([row.prompt for row in rows if row.prompt is not None])
    for row, row.opening in zip(rows, openings, strict=True):
        if row.opening not in known:
            row.refuse(
                "prompt_opens_otherwise",
                f"the prompt's last ids leave the reasoning {row.opening!r}; with this template it is one of "
                f"{sorted(known)}",
            )


def _render(row: Row, render: Render) -> None:
    try:
        ids = render(row.request)
        row.prompt = None if ids is None else np.array(ids, np.int32)
    except TemplateRefused as exc:
        row.refuse("template_refused", str(exc))
    except UnicodeEncodeError as exc:
        row.refuse("lone_surrogate", f"the request has half of a surrogate pair: {exc}")


def _refuse_markers(rows: Sequence[Row], codec: Codec) -> None:
    """Quarantine requests in which a message, of whatever role, or a tool has the text of a marker."""
    written = {json.dumps(marker, ensure_ascii=False)[1:-1]: marker for marker in codec.markers if marker.strip()}
    if not written or not rows:
        return
    pattern = "|".join(map(_literal, written))
    requests = pa.array([row.request for row in rows], pa.string())
    hits = pc.call_function("match_substring_regex", [requests], pc.MatchSubstringOptions(pattern))
    for place in np.flatnonzero(hits.to_numpy(zero_copy_only=False)).tolist():
        row = rows[place]
        found = next(marker for text, marker in written.items() if text in row.request)
        if not row.fault:
            row.refuse(
                "marker_in_prompt",
                f"a message has the text {found}, which a server may read as a control token "
                "(reconstruction.markers_in_prompt: mirror reads it so)",
            )


def _literal(text: str) -> str:
    return "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in text)
