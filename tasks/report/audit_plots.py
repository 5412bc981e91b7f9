"""The plots of an audit, as SVG and PNG: billed counts by provider, lengths, quarantine by reason, sample rows."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tasks.report.audit_html import visible
from tasks.report.audit_samples import KEPT, Piece, Sample
from tasks.report.plots import INK, POSITION_COLOURS, STYLE, write_figure
from tasks.validate.distributions import EDGES

PLOTS = {
    "audit_billed_delta": "Rebuilt minus billed ids, by provider",
    "audit_lengths": "Lengths of prompts and answers",
    "audit_quarantine": "Quarantined rows by reason",
    "audit_samples": "Sample rows: prompt grey, supervised tokens blue, markers boxed",
}

_MOST = 8  # providers, or datasets, in one plot
_MOST_REASONS = 24
_COLUMNS, _LINES = 110, 12  # of text in a sample
_POINTS = 8.3  # size of its letters, whose width is then a whole number of the PNG's pixels
_LETTER = 0.602 * _POINTS  # width of DejaVu Sans Mono
_LINE = 1.6 * _POINTS
_SHADES = ("#d6ecfb", "#b9def7")
_SUPERVISED, _PROMPT, _REJECTED = "#0b4f80", "#7b8088", "#b3261e"

Counts = dict[str, dict[str, int]]  # by series, then by key


def write_audit_plots(folder: Path, distributions: pa.Table, samples: Sequence[Sample]) -> dict[str, Path]:
    """Write all plots into a folder, each as NAME.svg and NAME.png; returns the PNG of each name."""
    with mpl.rc_context(STYLE):
        figures = {
            "audit_billed_delta": plot_deltas(_counts(distributions, "billed_delta")),
            "audit_lengths": plot_lengths(
                _counts(distributions, "prompt_length"), _counts(distributions, "answer_length")
            ),
            "audit_quarantine": plot_quarantine(_counts(distributions, "quarantined").get("", {})),
            "audit_samples": plot_samples(samples),
        }
        # the samples' colours are made for white
        return {name: write_figure(folder, name, figure, name != "audit_samples") for name, figure in figures.items()}


def plot_deltas(counts: Counts) -> Figure:
    """Rows by rebuilt minus billed ids; a panel per provider, those with the most rows."""
    providers = _largest(counts, _MOST)
    figure = Figure(figsize=(9, 1.0 + 1.7 * max(len(providers), 1)), layout="constrained")
    for number, provider in enumerate(providers):
        axes = figure.add_subplot(len(providers), 1, number + 1)
        known = {int(key): rows for key, rows in counts[provider].items() if key != "unknown"}
        axes.bar([str(delta) for delta in sorted(known)], [known[delta] for delta in sorted(known)], color=_colour(0))
        if unknown := counts[provider].get("unknown"):
            axes.bar(["no count"], [unknown], color=INK)
        axes.set_yscale("symlog", linthresh=1)
        axes.set(title=provider, ylabel="rows")
    if not providers:
        _nothing(figure.add_subplot(), "no billed counts")
    figure.supxlabel("rebuilt minus billed ids", color=INK, fontsize=9)
    return figure


def plot_lengths(prompts: Counts, answers: Counts) -> Figure:
    """Rows by length in ids; a line per dataset."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for axes, counts, title in ((panels[0], prompts, "Prompts"), (panels[1], answers, "Answers")):
        for number, dataset in enumerate(_largest(counts, _MOST)):
            edges, rows = _bins({int(key): rows for key, rows in counts[dataset].items()})
            axes.stairs(rows, edges, color=_colour(number), label=dataset, linewidth=1.4)
        axes.set(title=title, xlabel="ids", ylabel="rows")
        axes.set_ylim(bottom=0)
        if counts:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.legend(fontsize=8)
        else:
            _nothing(axes, "no rows")
    return figure


def plot_quarantine(counts: Mapping[str, int]) -> Figure:
    """Rows that no step let pass, by step and reason."""
    reasons = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_REASONS]
    reasons = [(name, rows) for name, rows in reasons if rows]
    figure = Figure(figsize=(9, 1.2 + 0.28 * max(len(reasons), 1)), layout="constrained")
    axes = figure.add_subplot()
    if not reasons:
        _nothing(axes, "nothing was quarantined")
        return figure
    bars = axes.barh([name for name, _ in reasons], [rows for _, rows in reasons], color=_colour(1))
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, color=INK, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="rows", title="Quarantined rows by reason")
    return figure


def plot_samples(samples: Sequence[Sample]) -> Figure:
    """The first lines of each sample."""
    blocks = [(sample, list(_lines(sample.pieces))[:_LINES]) for sample in samples]
    height = sum(len(lines) + 2 for _, lines in blocks) or 1
    figure = Figure(figsize=((_COLUMNS + 1) * _LETTER / 72, height * _LINE / 72), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, _COLUMNS + 0.5), ylim=(height, 0))
    axes.set_axis_off()
    top = 0
    for sample, lines in blocks:
        colour = _SUPERVISED if sample.verdict == KEPT else _REJECTED
        _write_text(axes, 0, top, f"{sample.verdict}: {sample.about}"[:_COLUMNS], colour, weight="bold")
        for number, line in enumerate(lines, top + 1):
            for column, text, piece, shade in line:
                _draw(axes, column, number, text, piece, shade)
        top += len(lines) + 2
    return figure


def _draw(axes: Axes, column: int, line: int, text: str, piece: Piece, shade: int) -> None:
    width = _width(text)
    if piece.supervised and piece.ids:
        axes.add_patch(Rectangle((column, line), width, 1, facecolor=_SHADES[shade], linewidth=0))
    colour = _SUPERVISED if piece.supervised else _PROMPT
    if piece.marker:
        axes.add_patch(Rectangle((column, line + 0.08), width, 0.84, fill=False, edgecolor=colour, linewidth=0.8))
    _write_text(axes, column, line, text, colour)


def _write_text(axes: Axes, column: int, line: int, text: str, colour: str, weight: str = "normal") -> None:
    axes.text(
        column,
        line + 0.5,
        text.replace("$", r"\$"),  # else matplotlib reads formulas
        family="DejaVu Sans Mono",
        fontsize=_POINTS,
        color=colour,
        va="center",
        weight=weight,
    )


def _lines(pieces: Sequence[Piece]) -> Iterator[list[tuple[int, str, Piece, int]]]:
    """Pieces set in lines: column, text, piece and shade of each run."""
    line: list[tuple[int, str, Piece, int]] = []
    column = 0
    for number, piece in enumerate(pieces):
        run, begin = "", column
        for character in map(_printable, visible(piece.text).replace("\t", "  ")):
            if character == "\n" or column + _width(character) > _COLUMNS:
                yield [*line, (begin, run, piece, number % 2)]
                line, run, begin, column = [], "", 0, 0
            if character != "\n":
                run += character
                column += _width(character)
        if run:
            line.append((begin, run, piece, number % 2))
    if line:
        yield line


def _printable(character: str) -> str:
    return character if character == "\n" or ord(character) in _glyphs() else "▯"


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    path = font_manager.findfont("DejaVu Sans Mono")
    return frozenset(font_manager.get_font(path).get_charmap())


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _counts(distributions: pa.Table, name: str) -> Counts:
    counts: Counts = {}
    for row in distributions.to_pylist():
        if row["distribution"] == name:
            counts.setdefault(row["series"], {})[row["key"]] = row["rows"]
    return counts


def _bins(counts: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """The edges from the first bin with rows to the end of the last, and the rows between them."""
    first, last = np.searchsorted(EDGES, [min(counts), max(counts)]).tolist()
    edges = EDGES[first : last + 2].tolist()
    return edges, [counts.get(edge, 0) for edge in edges[:-1]]


def _largest(counts: Counts, most: int) -> list[str]:
    return sorted(counts, key=lambda series: (-sum(counts[series].values()), series))[:most]


def _colour(number: int) -> str:
    return POSITION_COLOURS[number % len(POSITION_COLOURS)]


def _nothing(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
