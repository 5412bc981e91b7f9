"""The results of a benchmark as one HTML file that needs nothing else, and that can be read in light and in dark."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.report.served_cells import Section
from tasks.report.served_plots import PLOTS

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2228; --soft: #5b626b; --line: #d9dde2; --ground: #fff; --bad: #b3261e;
        --good: #1f7a4d; --head: #f4f6f8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #a2a9b3; --line: #363c44; --ground: #15181c;
        --bad: #ff8a80; --good: #6fcf97; --head: #1e2227 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 104em;
       margin: 2em auto; padding: 0 1.2em }
h1 { margin-bottom: .1em } h2 { margin: 2em 0 .3em } p { margin: .3em 0; max-width: 60em } .soft { color: var(--soft) }
.bad { color: var(--bad); font-weight: 600 } .good { color: var(--good); font-weight: 600 }
.wide { overflow-x: auto } table { border-collapse: collapse; margin: .6em 0; font-size: 13px }
th { text-align: left; color: var(--soft); font-weight: 600; background: var(--head); vertical-align: bottom }
th, td { padding: .3em .7em .3em .4em; border-bottom: 1px solid var(--line) } td { white-space: nowrap }
td.text { white-space: normal; min-width: 22em } td.number { text-align: right; font-variant-numeric: tabular-nums }
tr.draft td { font-weight: 600 } figure { margin: 1em 0 } figcaption { color: var(--soft); font-size: 13px }
figure svg { max-width: 100%; height: auto } code { font: 13px ui-monospace, monospace }
"""
_NUMBER = re.compile(r"^[-+]?[\d.,]+( ?(ms|%|×))?$")
_LONG = 60  # characters of a cell that may be broken into lines


def render_page(
    title: str,
    introduction: Sequence[str],
    closed: Sequence[str],
    sections: Sequence[Section],
    plots: Mapping[str, Path],
) -> str:
    """The whole page.

    Args:
        title: the recipe's name.
        introduction: what was run, a paragraph each.
        closed: why a gate is closed; empty if none is.
        sections: the tables.
        plots: the PNG of each plot, whose SVG lies beside it.
    """
    verdict = "".join(f'<p class="bad">{_text(reason)}</p>' for reason in closed)
    verdict = verdict or '<p class="good">Every gate of the recipe is open.</p>'
    first, rest = sections[:1], sections[1:]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}: draft in engines</title><style>{_STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>"
        + "".join(f'<p class="soft">{_text(line)}</p>' for line in introduction)
        + verdict
        + "".join(map(_section, first))
        + "".join(_plot(name, path) for name, path in plots.items())
        + "".join(map(_section, rest))
        + "</body></html>\n"
    )


def _section(section: Section) -> str:
    heads = "".join(f"<th>{html.escape(heading)}</th>" for heading in section.headings)
    rows = "".join(_row(row) for row in section.rows)
    text = f'<p class="soft">{_text(section.text)}</p>' if section.text else ""
    return (
        f'<h2 id="{section.key}">{html.escape(section.title)}</h2>{text}'
        f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'
    )


def _row(cells: Sequence[str]) -> str:
    kind = ' class="draft"' if "draft" in cells[:3] else ""
    return f"<tr{kind}>{''.join(map(_cell, cells))}</tr>"


def _cell(text: str) -> str:
    kinds = {"worse": "bad", "real": "bad", "better": "good", "right": "good", "exact": "good"}
    kind = kinds.get(text) or ("number" if _NUMBER.match(text) else "text" if len(text) > _LONG else "")
    return f'<td class="{kind}">{html.escape(text)}</td>' if kind else f"<td>{html.escape(text)}</td>"


def _plot(name: str, path: Path) -> str:
    drawing = path.with_suffix(".svg").read_text()
    drawing = drawing[drawing.index("<svg") :]  # without the XML prologue, which has no place inside HTML
    drawing = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", drawing)  # ids of several drawings on one page
    return f"<figure>{drawing}<figcaption>{html.escape(PLOTS[name])}</figcaption></figure>"


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
