"""What a fake server counts: requests and answers by key, and an account that adds up to the micro-dollar."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MICROS = 1_000_000  # per dollar
_PICOS = 1_000_000  # per micro-dollar


@dataclass(frozen=True)
class Price:
    """Prices as strings in dollars per token, as OpenRouter lists them."""

    prompt: str = "0.00000055"
    completion: str = "0.00000219"

    def micros(self, prompt_tokens: int, completion_tokens: int) -> int:
        """What tokens cost, rounded up to micro-dollars, without floating point."""
        picos = prompt_tokens * _picos(self.prompt) + completion_tokens * _picos(self.completion)
        return -(-picos // _PICOS)


def _picos(price: str) -> int:
    whole, _, fraction = price.partition(".")
    return int(whole) * MICROS * _PICOS + int(fraction.ljust(12, "0")[:12] or 0)


@dataclass
class Generation:
    """One answer that was made and billed, whether or not it arrived."""

    id: str
    key: str
    model: str
    provider: str
    prompt_tokens: int
    completion_tokens: int
    micros: int
    streamed: bool
    cancelled: bool = False

    def document(self) -> dict[str, Any]:
        """As OpenRouter's /generation tells it."""
        return {
            "id": self.id,
            "model": self.model,
            "provider_name": self.provider,
            "total_cost": self.micros / MICROS,
            "usage": self.micros / MICROS,
            "tokens_prompt": self.prompt_tokens,
            "tokens_completion": self.completion_tokens,
            "native_tokens_prompt": self.prompt_tokens,
            "native_tokens_completion": self.completion_tokens,
            "streamed": self.streamed,
            "cancelled": self.cancelled,
        }


@dataclass
class Tally:
    """What happened to the requests with one key."""

    requests: int = 0
    answered: int = 0  # good answers handed over whole
    billed: int = 0
    micros: int = 0
    outcomes: list[str] = field(default_factory=list)


class Account:
    """Everything that was asked and billed since the start, or since `reset`."""

    def __init__(self, price: Price, limit_micros: int = 0, in_flight_micros: int = 0) -> None:
        self.price, self.limit_micros, self.in_flight_limit = price, limit_micros, in_flight_micros
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.keys: dict[str, Tally] = {}
        self.generations: dict[str, Generation] = {}
        self.outcomes: Counter[str] = Counter()
        self.spent = self.reserved = 0
        self.in_flight = self.most_in_flight = 0

    def arrive(self, key: str) -> int:
        """Count a request; returns how many with this key came before."""
        tally = self.keys.setdefault(key, Tally())
        tally.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return tally.requests - 1

    def leave(self, key: str, outcome: str, answered: bool) -> None:
        """Count how a request ended."""
        tally = self.keys[key]
        tally.outcomes.append(outcome)
        tally.answered += answered
        self.outcomes[outcome] += 1
        self.in_flight -= 1

    def bill(self, generation: Generation) -> None:
        """Charge an answer."""
        self.generations[generation.id] = generation
        self.spent += generation.micros
        tally = self.keys[generation.key]
        tally.billed += 1
        tally.micros += generation.micros

    def summary(self) -> dict[str, Any]:
        """Everything, for a test to look at."""
        return {
            "keys": {key: vars(tally) for key, tally in self.keys.items()},
            "outcomes": dict(self.outcomes),
            "requests": sum(tally.requests for tally in self.keys.values()),
            "answered": sum(tally.answered for tally in self.keys.values()),
            "billed_micros": self.spent,
            "generations": len(self.generations),
            "most_in_flight": self.most_in_flight,
        }
