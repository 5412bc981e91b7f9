"""What tokens cost, in exact numbers: from the recipe, or from OpenRouter's lists of models and endpoints.

Pure parsing; fetching the lists is the client's. A worst case takes the dearest of the endpoints that may answer, and
no discount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

from schemas.errors import EngineError
from schemas.serving import PriceSpec

NANO = 10**9


@dataclass(frozen=True)
class Price:
    """US dollars, exact: per prompt token, completion token, request, and prompt token read from a cache."""

    prompt: Decimal = Decimal(0)
    completion: Decimal = Decimal(0)
    request: Decimal = Decimal(0)
    cached: Decimal | None = None  # None: as any prompt token
    cache_write: Decimal = Decimal(0)  # where writing the cache costs more than reading the prompt

    def worst_nanousd(self, prompt_tokens: int, max_tokens: int) -> int:
        """The most that a request can cost."""
        prompt = max(self.prompt, self.cached or Decimal(0), self.cache_write)
        return nanousd(self.request + prompt * prompt_tokens + self.completion * max_tokens)

    def cost_nanousd(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
        """What a request cost by its tokens."""
        cached = self.prompt if self.cached is None else self.cached
        prompt = self.prompt * (prompt_tokens - cached_tokens) + cached * cached_tokens
        return nanousd(self.request + prompt + self.completion * completion_tokens)


def nanousd(dollars: Decimal | float | str, rounding: str = ROUND_CEILING) -> int:
    """Dollars as whole nano-dollars: costs are rounded up. A float counts as the decimal that it is printed as.

    Raises:
        EngineError: no amount of money.
    """
    return int((_decimal(dollars, "an amount") * NANO).to_integral_value(rounding))


def usd(nano: int) -> str:
    """Nano-dollars for people, to the cent or as fine as it takes to see that it is not nothing."""
    dollars = Decimal(nano) / NANO
    return f"${dollars:,.2f}" if not nano or abs(nano) >= NANO // 100 else f"${dollars:.9f}".rstrip("0")


def price_of_recipe(spec: PriceSpec) -> Price:
    """The price that the recipe gives."""
    million = Decimal(1_000_000)
    return Price(
        Decimal(str(spec.prompt_usd_per_million)) / million, Decimal(str(spec.completion_usd_per_million)) / million
    )


def price_of_model(models: Mapping[str, Any], model: str) -> Price:
    """The worst price of a model in a response of OpenRouter's /models.

    Raises:
        EngineError: the model is not listed, or a price is no number.
    """
    entries = [entry for entry in models.get("data", []) if model in (entry.get("id"), entry.get("canonical_slug"))]
    if not entries:
        raise EngineError(f"{model} is not in the server's list of models: correct serving.model")
    return dearest(_prices(entry.get("pricing") or {}, model) for entry in entries)


def price_of_endpoints(
    document: Mapping[str, Any], allowed: Callable[[str, str], bool] = lambda provider, quantization: True
) -> Price:
    """The worst price of the endpoints that may answer, from a response of /models/AUTHOR/MODEL/endpoints.

    Args:
        document: the response.
        allowed: whether a provider with this quantization may answer.

    Raises:
        EngineError: none may, or a price is no number.
    """
    data = document.get("data") or {}
    model = str(data.get("id", "the model"))
    offers = [
        offer
        for offer in data.get("endpoints", [])
        if allowed(str(offer.get("provider_name", "")), str(offer.get("quantization") or "unknown"))
    ]
    if not offers:
        raise EngineError(f"no endpoint of {model} is allowed by serving.provider: loosen its rules")
    return dearest(
        _prices(offer.get("pricing") or {}, f"{model} at {offer.get('provider_name', 'a provider')}")
        for offer in offers
    )


def dearest(prices: Iterable[Price]) -> Price:
    """A price that none of these is above, in anything."""
    listed = list(prices)
    cached = [price.prompt if price.cached is None else price.cached for price in listed]
    return Price(
        max(price.prompt for price in listed),
        max(price.completion for price in listed),
        max(price.request for price in listed),
        max(cached),
        max(price.cache_write for price in listed),
    )


def _prices(pricing: Mapping[str, Any], whose: str) -> Price:
    """The worst of an entry's own price and its overrides, such as for long prompts or certain hours."""
    if "prompt" not in pricing or "completion" not in pricing:
        raise EngineError(f"{whose} has no price for prompt and completion: give serving.price, or another provider")
    base = _price(pricing, pricing, whose)
    overrides = [entry for entry in pricing.get("overrides") or [] if isinstance(entry, Mapping)]
    return dearest([base, *(_price(entry.get("pricing") or entry, pricing, whose) for entry in overrides)])


def _price(pricing: Mapping[str, Any], base: Mapping[str, Any], whose: str) -> Price:
    def read(name: str, default: str = "0") -> Decimal:
        value = pricing.get(name, base.get(name, default))
        found = _decimal(default if value is None else value, f"{whose}: the price {name}")
        if found < 0:  # -1 marks a router, whose price is that of the model it chooses
            raise EngineError(f"{whose}: the price {name} is {value}, so the worst case is unknown: name another model")
        return found

    has_cache = "input_cache_read" in pricing or "input_cache_read" in base
    return Price(
        read("prompt"),
        max(read("completion"), read("internal_reasoning")),
        read("request"),
        read("input_cache_read") if has_cache else None,
        read("input_cache_write"),
    )


def _decimal(value: Any, what: str) -> Decimal:
    try:
        found = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation as exc:
        raise EngineError(f"{what} is {value!r}, no number") from exc
    if not found.is_finite():
        raise EngineError(f"{what} is {value!r}, no finite number")
    return found
