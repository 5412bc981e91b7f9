"""Who may answer on OpenRouter: the rules as a request states them, and whether an answer keeps to them.

Responses name the provider but seldom its quantization, so that the list of a model's offers is needed to know it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.serving import ProviderRules
from tasks.generate.http.facts import Facts

# a day, as in "-20260127" and "-2026-01-27", or a commit, as in "@0a1b2c3"
_REVISION = re.compile(r"[-@]20\d\d(-?)(0[1-9]|1[0-2])\1(0[1-9]|[12]\d|3[01])|@[0-9a-f]{7,40}")
_COVERS = {"fp4": {"fp4", "nvfp4", "mxfp4"}, "fp8": {"fp8", "mxfp8"}}


@dataclass(frozen=True)
class Offer:
    """One provider's offer of a model."""

    provider: str
    quantization: str
    tag: str  # names this offer alone in routing rules
    prompt_usd: str  # per token, exact
    completion_usd: str


def offers_of(document: dict[str, Any]) -> list[Offer]:
    """The offers in a response of /models/AUTHOR/MODEL/endpoints."""
    return [
        Offer(
            offer["provider_name"],
            offer.get("quantization") or "unknown",
            offer.get("tag") or offer["provider_name"],
            str(offer["pricing"]["prompt"]),
            str(offer["pricing"]["completion"]),
        )
        for offer in document["data"]["endpoints"]
    ]


def routing(rules: ProviderRules, offers: Sequence[Offer]) -> dict[str, Any]:
    """The rules as OpenRouter takes them; a provider excluded with its quantization is ignored by its offer's tag."""
    body: dict[str, Any] = {
        "allow_fallbacks": rules.allow_fallbacks,
        "require_parameters": rules.require_parameters,
        "data_collection": rules.data_collection,
    }
    excluded = [offer.tag for offer in offers if _excluded(rules, offer.provider, offer.quantization)]
    lists = {
        "only": rules.only,
        "order": rules.order,
        "ignore": sorted({*rules.ignore, *excluded}),
        "quantizations": rules.quantizations,
    }
    body |= {name: list(value) for name, value in lists.items() if value}
    return body | ({"enforce_distillable_text": True} if rules.distillable_only else {})


def quantization_of(facts: Facts, offers: Sequence[Offer]) -> str | None:
    """The quantization of an answer: as it says, or that of its provider if all of that one's offers have the same."""
    if facts.quantization:
        return facts.quantization
    levels: dict[str, set[str]] = defaultdict(set)
    for offer in offers:
        levels[_plain(offer.provider)].add(offer.quantization)
    found = levels[_plain(facts.provider or "")]
    return found.pop() if len(found) == 1 else None


def objection(rules: ProviderRules, model: str, facts: Facts, quantization: str | None) -> str | None:
    """Why an answer may not be used: it comes from another model, provider or quantization than was allowed."""
    if facts.model and model and not is_same_model(model, facts.model):
        return f"model {facts.model} answered, {model} was asked"
    if not facts.provider:
        return "the answer does not name its provider" if rules.only or rules.exclude else None
    provider = _plain(facts.provider)
    if (rules.only and provider not in map(_plain, rules.only)) or provider in map(_plain, rules.ignore):
        return f"provider {facts.provider} is not allowed"
    level = quantization or "unknown"
    if _excluded(rules, facts.provider, level):
        return f"provider {facts.provider} with quantization {level} is excluded"
    if rules.quantizations and not any(level in _covered(allowed) for allowed in rules.quantizations):
        return f"quantization {level} of provider {facts.provider} is not allowed"
    return None


def is_same_model(asked: str, answered: str) -> bool:
    """Whether an answer's model is the one that was asked: its name, or that name with one date or commit after it.

    Variants such as ":free" are the same model. A name that was asked with a date is met by that date only; version
    numbers ("-0905", "-v2", "-thinking") are other models.
    """
    asked, answered = asked.partition(":")[0], answered.partition(":")[0]
    if not answered.startswith(asked):
        return False
    rest = answered[len(asked) :]
    return not rest or (not _ends_with_revision(asked) and bool(_REVISION.fullmatch(rest)))


def _ends_with_revision(name: str) -> bool:
    return any(_REVISION.fullmatch(name[place:]) for place, letter in enumerate(name) if letter in "-@")


def _excluded(rules: ProviderRules, provider: str, quantization: str) -> bool:
    return any(
        _plain(pair.provider) == _plain(provider) and quantization in _covered(pair.quantization)
        for pair in rules.exclude
    )


def _covered(quantization: str) -> set[str]:
    return _COVERS.get(quantization, {quantization})


def _plain(name: str) -> str:
    """A provider's name and its slug alike: "Moonshot AI", "moonshotai/int4" -> "moonshotai"."""
    return "".join(letter for letter in name.partition("/")[0].lower() if letter.isalnum())
