"""What the rest of a run will take, from a pilot: tokens, dollars, hours and disk, with 95 % intervals.

Assumes that the pilot's prompts are a random sample of their dataset's, that answers do not depend on each other, and
that the rate lies between those that the pilot shows. Prompt tokens are known for every prompt, so only answers are
uncertain: the mean of an answer's tokens and bytes is drawn again and again from the pilot's (bootstrap over prompts).
Among few prompts rare long answers are easily missed; then the interval is too narrow, and `at_limit` says how many
answers the limit cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from tasks.generate.prices import NANO, Price, nanousd

_DRAWS = 4000
_LOW, _HIGH = 2.5, 97.5
_FEWEST = 2  # answers that tell anything of their spread


@dataclass(frozen=True)
class Pilot:
    """One dataset: all its prompts, and the answers that the pilot got."""

    prompt_tokens: Sequence[int]  # of every prompt that is still to be answered
    completion_tokens: Sequence[int]  # of each pilot answer
    body_bytes: Sequence[int]  # of each pilot answer, in the same order
    max_tokens: int
    price: Price
    billed_share: float = 1.0  # of what the price says, as far as the pilot was billed


@dataclass(frozen=True)
class Range:
    """An expectation and its 95 % interval."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """What remains to be done and what it will take; one attempt per prompt costs `usd_worst` at most."""

    prompts: int
    pilot: int
    prompt_tokens: int
    completion_tokens: Range
    usd: Range
    usd_worst: float
    hours: Range | None  # None where no rate is known
    bytes_on_disk: Range
    at_limit: int  # pilot answers that ended at the limit of tokens


def forecast(
    pilots: Mapping[str, Pilot],
    tokens_per_second: float | None,
    bytes_per_stored_byte: float = 1.0,
    seed: int = 0,
    slowest: float | None = None,
) -> tuple[dict[str, Forecast], Forecast]:
    """The forecast of each dataset, and of the run.

    Args:
        pilots: by dataset.
        tokens_per_second: completion tokens at full concurrency; None if nothing was timed.
        bytes_per_stored_byte: size on disk of a byte of response; 1 as long as answers are in the log.
        seed: of the draws.
        slowest: the least rate that is likely, for the upper end of hours; as the rate if None.

    Raises:
        ValueError: a pilot has fewer than two answers although prompts remain, or no rate is given.
    """
    rates = None if tokens_per_second is None else (tokens_per_second, slowest or tokens_per_second)
    if rates and min(rates) <= 0:
        raise ValueError("a forecast of hours needs a rate of tokens above zero")
    chance = np.random.default_rng(seed)
    drawn = {name: _draw(name, pilot, chance) for name, pilot in pilots.items()}
    named = {name: _summed([pilot], [drawn[name]], rates, bytes_per_stored_byte) for name, pilot in pilots.items()}
    return named, _summed(list(pilots.values()), list(drawn.values()), rates, bytes_per_stored_byte)


@dataclass(frozen=True)
class _Drawn:
    """Sums over what remains of one dataset: the expectation first, then one per draw."""

    tokens: NDArray[np.float64]
    sizes: NDArray[np.float64]


def _draw(name: str, pilot: Pilot, chance: np.random.Generator) -> _Drawn:
    remaining, count = len(pilot.prompt_tokens), len(pilot.completion_tokens)
    if len(pilot.body_bytes) != count:
        raise ValueError(f"the pilot of {name} has {count} counts of tokens and {len(pilot.body_bytes)} sizes")
    if not remaining:
        return _Drawn(np.zeros(_DRAWS + 1), np.zeros(_DRAWS + 1))
    if count < _FEWEST:
        raise ValueError(f"the pilot of {name} has {count} answers: it needs at least {_FEWEST}")
    tokens, sizes = np.asarray(pilot.completion_tokens, float), np.asarray(pilot.body_bytes, float)
    rows = chance.integers(0, count, (_DRAWS, count))
    # a draw's mean is uncertain, and so is the sum of the answers to come around it
    spread = chance.standard_normal(_DRAWS) * np.sqrt(remaining)
    answers = tokens[rows].mean(axis=1) * remaining + spread * tokens.std(ddof=1)
    answers = np.clip(answers, 0, float(pilot.max_tokens) * remaining)
    stored = np.clip(sizes[rows].mean(axis=1) * remaining + spread * sizes.std(ddof=1), 0, None)
    return _Drawn(np.append(tokens.mean() * remaining, answers), np.append(sizes.mean() * remaining, stored))


def _summed(pilots: list[Pilot], drawn: list[_Drawn], rates: tuple[float, float] | None, stored: float) -> Forecast:
    tokens = sum((one.tokens for one in drawn), np.zeros(_DRAWS + 1))
    dollars = sum((_dollars(pilot, one.tokens) for pilot, one in zip(pilots, drawn, strict=True)), np.zeros(_DRAWS + 1))
    return Forecast(
        prompts=sum(len(pilot.prompt_tokens) for pilot in pilots),
        pilot=sum(len(pilot.completion_tokens) for pilot in pilots),
        prompt_tokens=sum(sum(pilot.prompt_tokens) for pilot in pilots),
        completion_tokens=_range(tokens),
        usd=_range(dollars),
        usd_worst=sum(_worst(pilot) for pilot in pilots) / NANO,
        hours=_hours(tokens, rates),
        bytes_on_disk=_range(stored * sum((one.sizes for one in drawn), np.zeros(_DRAWS + 1))),
        at_limit=sum(count >= pilot.max_tokens for pilot in pilots for count in pilot.completion_tokens),
    )


def _hours(tokens: NDArray[np.float64], rates: tuple[float, float] | None) -> Range | None:
    if rates is None:
        return None
    found = _range(tokens / rates[0] / 3600)
    return Range(found.expected, found.low, found.high * max(1.0, rates[0] / rates[1]))


def _dollars(pilot: Pilot, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    prompts = pilot.price.prompt * sum(pilot.prompt_tokens) + pilot.price.request * len(pilot.prompt_tokens)
    return (float(prompts) + float(pilot.price.completion) * tokens) * pilot.billed_share


def _worst(pilot: Pilot) -> int:
    limit = Decimal(pilot.max_tokens) * len(pilot.prompt_tokens)
    requests = pilot.price.request * len(pilot.prompt_tokens)
    dearest = max(pilot.price.prompt, pilot.price.cached or Decimal(0), pilot.price.cache_write)
    return nanousd(dearest * sum(pilot.prompt_tokens) + pilot.price.completion * limit + requests)


def _range(values: NDArray[np.float64]) -> Range:
    low, high = np.percentile(values[1:], [_LOW, _HIGH])
    return Range(float(values[0]), float(low), float(high))
