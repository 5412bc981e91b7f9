"""The audit as one HTML file that needs nothing else: the checks, and sample rows with the loss mask in colour."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tasks.report.audit_samples import KEPT, Piece, Sample

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2228; background: #fff; max-width: 70em; margin: 2em auto;
       padding: 0 1em }
table { border-collapse: collapse } th, td { padding: .15em .8em .15em 0; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums } tr.closed { color: #b3261e; font-weight: 600 }
tr.found { color: #8a5a00 } h3 { margin: 1.6em 0 .2em } h3.rejected { color: #b3261e } p { margin: .2em 0 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #d5d9de; border-radius: 4px; padding: .6em;
      font: 13px/1.7 ui-monospace, monospace }
.prompt { color: #7b8088 } .answer { color: #0b4f80; background: #d6ecfb } .answer.odd { background: #b9def7 }
.marker { border: 1px solid currentColor; border-radius: 3px; padding: 0 2px; font-weight: 600 }
.gap { font-style: italic; background: none }
"""


def render_html(title: str, checks: Sequence[dict[str, str]], samples: Sequence[Sample]) -> str:
    """The whole page.

    Args:
        title: the recipe's name.
        checks: a row per check: check, rows, failed, limit, state ("closed", "found" or empty), asks.
        samples: rows to show.
    """
    rows = "".join(_check(row) for row in checks)
    shown = "".join(_sample(sample) for sample in samples)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}: audit</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}: audit</h1>"
        "<table><tr><th>check</th><th>rows</th><th>failed</th><th>limit</th><th>what it asks</th></tr>"
        f"{rows}</table><h2>Sample rows</h2>"
        '<p><span class="prompt">Prompt, not trained</span> · <span class="answer">answer, </span>'
        '<span class="answer odd">supervised</span> (one shade a token) · <span class="marker">marker</span>. '
        f"Point at a token to see its id.</p>{shown}</body></html>\n"
    )


def visible(text: str) -> str:
    """Text whose line ends and control characters can be seen."""
    shown = []
    for character in text:
        if character == "\n":
            shown.append("↵\n")
        elif character == "\x7f":
            shown.append("␡")
        else:
            shown.append(chr(0x2400 + ord(character)) if ord(character) < 0x20 and character != "\t" else character)
    return "".join(shown)


def _check(row: dict[str, str]) -> str:
    numbers = "".join(f'<td class="number">{html.escape(row[name])}</td>' for name in ("rows", "failed", "limit"))
    return (
        f'<tr class="{html.escape(row["state"])}"><td>{html.escape(row["check"])}</td>{numbers}'
        f"<td>{html.escape(row['asks'])}</td></tr>"
    )


def _sample(sample: Sample) -> str:
    state = "kept" if sample.verdict == KEPT else "rejected"
    detail = f"<p>{html.escape(visible(sample.detail))}</p>" if sample.detail else ""
    tokens = "".join(_token(piece, number) for number, piece in enumerate(sample.pieces))
    return (
        f'<h3 class="{state}">{html.escape(sample.verdict)}: {html.escape(sample.prompt_id)}</h3>'
        f"<p>{html.escape(sample.about)}</p>{detail}<pre>{tokens}</pre>"
    )


def _token(piece: Piece, number: int) -> str:
    names = ["answer" if piece.supervised else "prompt"]
    names += ["odd"] * (number % 2) + ["marker"] * piece.marker + ["gap"] * (not piece.ids)
    title = f' title="{" ".join(map(str, piece.ids))}"' if piece.ids else ""
    return f'<span class="{" ".join(names)}"{title}>{html.escape(visible(piece.text))}</span>'
