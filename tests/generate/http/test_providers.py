"""Who may answer: by name, quantization and model."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.serving import ProviderQuantization, ProviderRules
from tasks.generate.http.facts import Facts, facts_of
from tasks.generate.http.providers import Offer, is_same_model, objection, offers_of, quantization_of, routing

OFFERS = [
    Offer("Fireworks", "nvfp4", "fireworks/nvfp4", "0.000001", "0.000002"),
    Offer("Fireworks", "fp8", "fireworks/fp8", "0.000001", "0.000002"),
    Offer("BaseTen", "fp4", "baseten/fp4", "0.000001", "0.000002"),
    Offer("Moonshot AI", "int4", "moonshotai/int4", "0.000001", "0.000002"),
]
EXCLUDE = [
    ProviderQuantization(provider="Fireworks", quantization="fp4"),
    ProviderQuantization(provider="BaseTen", quantization="fp4"),
]


def said(rules: ProviderRules, provider: str | None, quantization: str | None = None, model: str = "m") -> str | None:
    return objection(rules, "m", Facts(provider=provider, model=model), quantization)


def test_rules_are_sent_as_openrouter_takes_them() -> None:
    rules = ProviderRules(only=["a"], order=["a"], ignore=["b"], quantizations=["fp8"], distillable_only=True)
    assert routing(rules, []) == {
        "only": ["a"],
        "order": ["a"],
        "ignore": ["b"],
        "quantizations": ["fp8"],
        "allow_fallbacks": False,
        "require_parameters": True,
        "data_collection": "deny",
        "enforce_distillable_text": True,
    }


def test_a_pair_of_provider_and_quantization_is_ignored_and_its_other_offers_are_not() -> None:
    assert routing(ProviderRules(exclude=EXCLUDE), OFFERS)["ignore"] == ["baseten/fp4", "fireworks/nvfp4"]


def test_fp4_covers_its_relatives() -> None:
    rules = ProviderRules(exclude=EXCLUDE)
    assert said(rules, "Fireworks", "nvfp4") == "provider Fireworks with quantization nvfp4 is excluded"
    assert said(rules, "fireworks", "mxfp4")
    assert said(rules, "Fireworks", "fp8") is None
    assert said(rules, "BaseTen", "fp4")


def test_an_answer_from_another_host_is_refused_by_the_level_that_it_names() -> None:
    facts = facts_of({"provider": "OtherHost (fp4)", "model": "m"})
    rules = ProviderRules(ignore=["fireworks", "baseten"], quantizations=["int4", "fp8"])
    assert objection(rules, "m", facts, quantization_of(facts, OFFERS)) == (
        "quantization fp4 of provider OtherHost is not allowed"
    )


@pytest.mark.parametrize(
    ("rules", "provider", "wanted"),
    [
        ({"only": ["moonshotai"]}, "Moonshot AI", None),
        ({"only": ["moonshotai/int4"]}, "Moonshot AI", None),
        ({"only": ["moonshotai"]}, "OtherHost", "provider OtherHost is not allowed"),
        ({"ignore": ["otherhost"]}, "OtherHost", "provider OtherHost is not allowed"),
        ({"only": ["moonshotai"]}, None, "the answer does not name its provider"),
        ({}, None, None),
        ({"quantizations": ["bf16"]}, "OtherHost", "quantization unknown of provider OtherHost is not allowed"),
        ({"quantizations": ["unknown"]}, "OtherHost", None),
    ],
)
def test_names_and_slugs_mean_the_same_provider(rules: dict[str, Any], provider: Any, wanted: str | None) -> None:
    assert said(ProviderRules(**rules), provider) == wanted


def test_another_model_is_refused_and_a_variant_of_the_same_is_not() -> None:
    assert said(ProviderRules(), "A", model="other") == "model other answered, m was asked"
    assert said(ProviderRules(), "A", model="m:free") is None


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-20260127", True),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-2026-01-27", True),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5@20260127", True),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5@0a1b2c3", True),
        ("moonshotai/kimi-k2.5:free", "moonshotai/kimi-k2.5-20260127", True),
        ("moonshotai/kimi-k2.5-20260127", "moonshotai/kimi-k2.5-20260127", True),
        ("moonshotai/kimi-k2.5-20260127", "moonshotai/kimi-k2.5", False),
        ("moonshotai/kimi-k2.5-20260127", "moonshotai/kimi-k2.5-20260127-20260301", False),
        ("moonshotai/kimi-k2.5-20260127", "moonshotai/kimi-k2.5-20260301", False),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2-0905", False),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2.5-20260127", False),
        ("moonshotai/kimi-k2", "moonshotai/kimi-k2-thinking-20251106", False),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-20261340", False),
        ("moonshotai/kimi-k2.5", "moonshotai/kimi-k2.5-2026-0127", False),
        ("moonshotai/kimi-k2.5", "other/kimi-k2.5-20260127", False),
    ],
)
def test_a_name_with_a_date_is_the_same_model_and_another_version_is_not(asked: str, answered: str, same: bool) -> None:
    assert is_same_model(asked, answered) == same
    said = objection(ProviderRules(), asked, Facts(provider="A", model=answered), None)
    assert said == (None if same else f"model {answered} answered, {asked} was asked")


def test_the_level_of_an_answer_is_its_providers_if_that_has_only_one() -> None:
    assert quantization_of(Facts(provider="Moonshot AI"), OFFERS) == "int4"
    assert quantization_of(Facts(provider="Fireworks"), OFFERS) is None


def test_offers_are_read_with_their_prices_as_strings() -> None:
    pricing = {"prompt": "0.00000055", "completion": "0.00000219"}
    document = {
        "data": {"endpoints": [{"provider_name": "A", "tag": "a/fp8", "quantization": "fp8", "pricing": pricing}]}
    }
    assert offers_of(document) == [Offer("A", "fp8", "a/fp8", "0.00000055", "0.00000219")]
