"""The plots of a benchmark in engines: acceptance by position, dataset and engine, speed-up, and history over runs.

As the other plots they have mid-tone ink on no ground, so that they can be read on light and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.benchmark.served.figures import Figures, Served
from tasks.report.plots import ALL, INK, POSITION_COLOURS, STYLE, write_figure

PLOTS = {
    "served_by_engine": "Acceptance length by engine, with 95 % intervals",
    "served_by_position": "Accepted by position in the chain",
    "served_by_dataset": "Acceptance length by dataset, with 95 % intervals",
    "served_speed_up": "Speed-up by requests in flight",
    "served_history": "Acceptance length over runs of this benchmark",
}
_MARKERS = "os^Dvx*P"
_MOST_LABELS = 40  # characters


def write_served_plots(folder: Path, figures: Served, history: Sequence[dict[str, Any]]) -> dict[str, Path]:
    """Write the plots that have something to show, each as NAME.svg and NAME.png; returns the PNG of each name."""
    with mpl.rc_context(STYLE):
        drawn = {
            "served_by_engine": plot_engines(figures),
            "served_by_position": plot_positions(figures),
            "served_by_dataset": plot_datasets(figures),
            "served_speed_up": plot_speed(figures),
            "served_history": plot_history(history),
        }
        return {name: write_figure(folder, name, figure) for name, figure in drawn.items() if figure is not None}


def plot_engines(figures: Served) -> Figure | None:
    """A row per engine, drafter, setting, temperature and concurrency."""
    shown = [one for one in figures.overall if one.verify_steps]
    if not shown:
        return None
    figure = Figure(figsize=(8, 1.1 + 0.34 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    engines = list(dict.fromkeys(one.place.engine for one in shown))
    for row, one in enumerate(shown):
        index = engines.index(one.place.engine)
        _interval(axes, one, row, _colour(index), _MARKERS[index % len(_MARKERS)])
    axes.set_yticks(range(len(shown)), [_name(one) for one in shown])
    axes.invert_yaxis()
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set(xlabel="acceptance length, tokens per verify step")
    return figure


def plot_positions(figures: Served) -> Figure | None:
    """Share of verify steps that accepted each position and all before it; a line per row of the table."""
    shown = [one for one in figures.overall if one.joint]
    if not shown:
        return None
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for number, one in enumerate(shown):
        positions = range(1, len(one.joint) + 1)
        style = {"color": _colour(number), "marker": _MARKERS[number % len(_MARKERS)], "alpha": 0.85}
        axes.plot(positions, one.joint, label=_name(one), linestyle="-" if number % 2 else "--", **style)
        axes.set_xticks(list(positions))
    axes.set(xlabel="position in the chain", ylabel="accepted")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


def plot_datasets(figures: Served) -> Figure | None:
    """A row per dataset, a mark per drafting place."""
    shown = [one for one in (*figures.by_dataset, *figures.overall) if one.verify_steps and not math.isnan(one.low)]
    datasets = [*sorted({one.dataset for one in shown if one.dataset}), ""]
    places = list(dict.fromkeys(one.place for one in shown))
    if not places:
        return None
    figure = Figure(figsize=(8, 1.4 + (0.35 + 0.1 * len(places)) * len(datasets)), layout="constrained")
    axes = figure.add_subplot()
    for index, place in enumerate(places):
        label: str | None = None
        for one in (one for one in shown if one.place == place):
            offset = (index - (len(places) - 1) / 2) * 0.8 / len(places)
            label = None if label else _name(one)
            marker = _MARKERS[index % len(_MARKERS)]
            _interval(axes, one, datasets.index(one.dataset) + offset, _colour(index), marker, label)
            label = _name(one)
    axes.set_yticks(range(len(datasets)), [name or ALL for name in datasets])
    axes.invert_yaxis()
    axes.set(xlabel="acceptance length, tokens per verify step")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def plot_speed(figures: Served) -> Figure | None:
    """Tokens per second against the same without a drafter, over the requests in flight."""
    shown = [one for one in figures.overall if one.place.steps and not math.isnan(one.speed_up)]
    if not shown:
        return None
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[tuple[Any, ...], list[Figures]] = {}
    for one in shown:
        lines.setdefault((*one.place[:6],), []).append(one)
    for number, line in enumerate(lines.values()):
        line.sort(key=lambda one: one.place.concurrency)
        spread = [
            [max(one.speed_up - one.speed_low, 0) if one.speed_low == one.speed_low else 0 for one in line],
            [max(one.speed_high - one.speed_up, 0) if one.speed_high == one.speed_high else 0 for one in line],
        ]
        axes.errorbar(
            [one.place.concurrency for one in line],
            [one.speed_up for one in line],
            yerr=spread,
            color=_colour(number),
            marker=_MARKERS[number % len(_MARKERS)],
            capsize=2,
            label=f"{line[0].place.label}, t {line[0].place.temperature:g}",
        )
    axes.axhline(1, color=INK, linewidth=0.8)
    ticks = sorted({one.place.concurrency for one in shown})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set(xlabel="requests in flight", ylabel="speed-up")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


def plot_history(history: Sequence[dict[str, Any]]) -> Figure | None:
    """Acceptance length over the runs; nothing until there are two."""
    runs = sorted({row["made_at"] for row in history})
    if len(runs) < 2:
        return None
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for number, label in enumerate(dict.fromkeys(row["label"] for row in history)):
        own = [row for row in history if row["label"] == label and row["length"] == row["length"]]
        low = [max(row["length"] - row["low"], 0) if row["low"] == row["low"] else 0 for row in own]
        high = [max(row["high"] - row["length"], 0) if row["high"] == row["high"] else 0 for row in own]
        axes.errorbar(
            [runs.index(row["made_at"]) for row in own],
            [row["length"] for row in own],
            yerr=[low, high],
            color=_colour(number),
            marker=_MARKERS[number % len(_MARKERS)],
            capsize=2,
            label=label,
        )
    axes.set_xticks(range(len(runs)), [run[5:16].replace("T", " ") for run in runs], rotation=30)
    axes.set(ylabel="acceptance length")
    axes.legend(fontsize=8)
    return figure


def _interval(axes: Axes, one: Figures, row: float, colour: str, marker: str, label: str | None = None) -> None:
    known = not math.isnan(one.low)
    spread = [[max(one.length - one.low, 0)], [max(one.high - one.length, 0)]] if known else None
    style = {"fmt": marker, "color": colour, "capsize": 2, "markersize": 5}
    axes.errorbar([one.length], [row], xerr=spread, label=label, **style)


def _name(one: Figures) -> str:
    place = one.place
    return f"{place.label}, t {place.temperature:g}, {place.concurrency} in flight"[: 2 * _MOST_LABELS]


def _colour(number: int) -> str:
    return POSITION_COLOURS[number % len(POSITION_COLOURS)]
