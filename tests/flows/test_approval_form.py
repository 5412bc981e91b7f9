"""The form that a person fills in to approve spending: its constraints hold in Prefect and here."""

from __future__ import annotations

from typing import Any

import pytest

from flows.approval import Approval, prefilled


def test_a_form_that_is_filled_in_keeps_its_constraints() -> None:
    form = prefilled(Approval, "**Continue?**", cap_usd=86.12)
    schema = form.model_json_schema()
    cap = schema["properties"]["cap_usd"]
    assert (cap["default"], cap["title"], cap["minimum"], cap["maximum"]) == (86.12, "Cap in USD", 0.01, 1_000_000)
    assert "nothing more is sent" in cap["description"]
    assert schema["properties"]["decision"]["enum"] == ["approve", "stop"]
    assert schema["properties"]["decision"]["default"] == "stop"
    assert form._description == "**Continue?**"


@pytest.mark.parametrize("values", [{"cap_usd": -5}, {"cap_usd": 0}, {"decision": "maybe"}, {"other": 1}])
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        prefilled(Approval, "", cap_usd=86.12)(**values)
