"""The tables of a benchmark in engines as text cells, for the terminal, Markdown, the page and Prefect alike."""

from __future__ import annotations

import math

from tasks.benchmark.served.figures import Figures

HEADINGS = (
    "engine",
    "drafter",
    "steps/top-k/tokens",
    "temperature",
    "concurrency",
    "acceptance length",
    "95 % interval",
    "rate",
    "accepted per position",
    "tokens/s",
    "first token",
    "between tokens",
    "speed-up",
    "prompts",
)
TEXT_COLUMNS = (0, 1, 2, 6, 8)
SHORT = (0, 1, 2, 3, 4, 5, 6, 8, 9, 12)  # columns that fit on a terminal


def figure_cells(one: Figures) -> tuple[str, ...]:
    """The cells under HEADINGS."""
    place = one.place
    return (
        place.engine,
        place.drafter,
        place.speculation or "–",
        f"{place.temperature:g}",
        str(place.concurrency),
        number(one.length),
        interval(one.low, one.high),
        number(one.rate),
        " ".join(number(share) for share in one.joint) or "–",
        number(one.tokens_per_second, 1),
        f"{number(1000 * one.first_seconds, 0)} ms",
        f"{number(1000 * one.between_seconds, 1)} ms",
        speed_up(one),
        str(one.prompts),
    )


def speed_up(one: Figures) -> str:
    """Such as "1.42× (1.31 to 1.55)"."""
    if math.isnan(one.speed_up):
        return "–"
    spread = "" if math.isnan(one.speed_low) else f" ({one.speed_low:.2f} to {one.speed_high:.2f})"
    return f"{one.speed_up:.2f}×{spread}"


def interval(low: float, high: float) -> str:
    """Both ends, or a dash."""
    return "–" if math.isnan(low) else f"{low:.3f} to {high:.3f}"


def number(value: float, digits: int = 3) -> str:
    """A figure, or a dash for none."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"
