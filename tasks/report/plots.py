"""The plots of a run, as SVG and PNG: training, acceptance by position, acceptance by dataset.

They are transparent with mid-tone ink, so that they can be read on light and on dark pages, and equal inputs give equal
SVG bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.artifacts.files import write_bytes
from tasks.benchmark.statistics import Acceptance, Measured

INK = "#7b8088"  # at least 4:1 against white and against near-black
COLOURS = {"none": INK, "ngram": "#d9822b", "untrained": "#9a6fd0", "trained": "#2b8fd9"}
MARKERS = {"none": "x", "ngram": "s", "untrained": "^", "trained": "o"}
POSITION_COLOURS = ("#2b8fd9", "#d9822b", "#2fa36b", "#9a6fd0", "#d0567c", "#8a8d3b", "#3aa6a6", "#a8704f")
ALL = "all prompts"

STYLE: dict[Any, Any] = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "eyas",
}


def write_plots(folder: Path, measured: Measured, curve: pa.Table) -> dict[str, Path]:
    """Write all plots into a folder, each as NAME.svg and NAME.png; returns the PNG of each name."""
    with mpl.rc_context(STYLE):
        figures = {
            "training": plot_training(curve),
            "acceptance_by_position": plot_positions(measured),
            "acceptance_by_dataset": plot_datasets(measured),
        }
        return {name: write_figure(folder, name, figure) for name, figure in figures.items()}


def write_figure(folder: Path, name: str, figure: Figure, transparent: bool = True) -> Path:
    """Write a figure as NAME.svg and NAME.png; returns the PNG."""
    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 144})):
        content = io.BytesIO()
        figure.savefig(content, format=kind, transparent=transparent, **options)
        write_bytes(folder / f"{name}.{kind}", content.getvalue())
    return folder / f"{name}.png"


def plot_training(curve: pa.Table) -> Figure:
    """Loss, and simulated acceptance on held-out sequences, over optimiser steps; a line per position."""
    points = curve.to_pylist()
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, kind, title in (
        (panels[0], "loss", "Loss per training-time-test step"),
        (panels[1], "simulated_acceptance", "Simulated acceptance, held-out sequences"),
    ):
        own = [point for point in points if point["kind"] == kind]
        for position in sorted({point["position"] for point in own}):
            line = [(p["step"], p["value"]) for p in own if p["position"] == position]
            axes.plot(
                *zip(*line, strict=True),
                color=POSITION_COLOURS[position % len(POSITION_COLOURS)],
                label=f"position {position + 1}",
                marker="." if len(line) < 30 else None,
                linewidth=1.4,
            )
        axes.set(title=title, xlabel="optimiser steps")
        axes.set_ylim(bottom=0)
        if own:
            axes.legend(fontsize=8)
    return figure


def plot_positions(measured: Measured) -> Figure:
    """Share of verify steps in which each position was accepted; a panel per temperature, a line per drafter."""
    temperatures = _temperatures(measured)
    figure, panels = _panels(len(temperatures))
    for axes, temperature in zip(panels, temperatures, strict=True):
        for a in _drafting(measured.overall, temperature):
            label = f"{a.drafter}, {a.length:.2f} tokens per step"
            positions = range(1, a.chain + 1)
            axes.plot(positions, a.joint, color=COLOURS[a.drafter], marker=MARKERS[a.drafter], label=label)
            axes.set_xticks(list(positions))
        axes.set(title=f"Temperature {temperature:g}", xlabel="position in the chain", ylabel="accepted")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    return figure


def plot_datasets(measured: Measured) -> Figure:
    """Acceptance length with its 95 % interval; a panel per temperature, a row per dataset, a mark per drafter."""
    temperatures = _temperatures(measured)
    datasets = [*sorted({a.dataset for a in measured.by_dataset if a.dataset}), ALL]
    figure, panels = _panels(len(temperatures), height=1.6 + 0.5 * len(datasets))
    for axes, temperature in zip(panels, temperatures, strict=True):
        shown = _drafting((*measured.by_dataset, *measured.overall), temperature)
        drafters = sorted({a.drafter for a in shown}, key=list(COLOURS).index)
        for index, drafter in enumerate(drafters):
            own = [a for a in shown if a.drafter == drafter and a.verify_steps]
            offset = (index - (len(drafters) - 1) / 2) * 0.2
            axes.errorbar(
                [a.length for a in own],
                [datasets.index(a.dataset or ALL) + offset for a in own],
                xerr=[[max(a.length - a.low, 0) for a in own], [max(a.high - a.length, 0) for a in own]],
                fmt=MARKERS[drafter],
                color=COLOURS[drafter],
                capsize=2,
                markersize=5,
                label=drafter,
            )
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(datasets)), datasets)
        axes.invert_yaxis()
        axes.set(title=f"Temperature {temperature:g}", xlabel="acceptance length, tokens per step")
    if panels:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) or 1, fontsize=8)
    return figure


def _temperatures(measured: Measured) -> list[float]:
    return sorted({a.temperature for a in measured.overall if a.chain})


def _drafting(figures: Sequence[Acceptance], temperature: float) -> list[Acceptance]:
    return [a for a in figures if a.chain and a.temperature == temperature]


def _panels(count: int, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.5 * max(count, 1), height), layout="constrained")
    return figure, [figure.add_subplot(1, count, index + 1) for index in range(count)]
