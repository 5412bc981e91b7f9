"""The contracts of paid answers and of the ledger take good rows, and refuse bad ones by column and rule."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.contract import Contract
from schemas.errors import ContractViolation
from schemas.ledger import LEDGER, PAID_ANSWERS

PAID: dict[str, Any] = {
    "key": "0" * 64,
    "dataset": "B3",
    "prompt_id": "p1",
    "attempt_id": None,
    "endpoint": "http://127.0.0.1:1",
    "dialect": "openai-chat",
    "provider": None,
    "model": None,
    "quantization": None,
    "generation_id": None,
    "prompt_tokens": None,
    "completion_tokens": 4,
    "cost_nanousd": None,
    "received_ms": 1,
    "body": b"{}",
}
ATTEMPT: dict[str, Any] = {
    "attempt_id": "a1",
    "key": "0" * 64,
    "dataset": "B3",
    "endpoint": "http://127.0.0.1:1",
    "provider": None,
    "model": None,
    "quantization": None,
    "generation_id": None,
    "prompt_tokens": None,
    "completion_tokens": None,
    "reasoning_tokens": None,
    "cost_nanousd": 0,
    "worst_nanousd": 9,
    "billed": "no",
    "estimated": False,
    "retry": 0,
    "outcome": "rate_limited",
    "detail": "",
    "status": 429,
    "latency_ms": 3,
    "started_ms": 1,
}


@pytest.mark.parametrize(("contract", "row"), [(PAID_ANSWERS, PAID), (LEDGER, ATTEMPT)], ids=lambda one: "")
def test_a_good_row_is_taken(contract: Contract, row: dict[str, Any]) -> None:
    assert contract.table([row]).num_rows == 1


@pytest.mark.parametrize(
    ("contract", "row", "change", "complaint"),
    [
        (PAID_ANSWERS, PAID, {"key": "short"}, "key"),
        (PAID_ANSWERS, PAID, {"body": None}, "body"),
        (PAID_ANSWERS, PAID, {"completion_tokens": -1}, "completion_tokens"),
        (PAID_ANSWERS, PAID, {"dialect": ""}, "dialect"),
        (LEDGER, ATTEMPT, {"cost_nanousd": 5}, "what_is_not_billed_costs_nothing"),
        (LEDGER, ATTEMPT, {"billed": "yes", "cost_nanousd": None}, "known_bills_have_a_cost"),
        (LEDGER, ATTEMPT, {"billed": "perhaps"}, "billed"),
        (LEDGER, ATTEMPT, {"outcome": ""}, "outcome"),
        (LEDGER, ATTEMPT, {"retry": -1}, "retry"),
    ],
)
def test_a_bad_row_is_refused_by_name(
    contract: Contract, row: dict[str, Any], change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ContractViolation, match=complaint):
        contract.table([row | change])


def test_a_key_is_there_once() -> None:
    with pytest.raises(ContractViolation, match="key"):
        PAID_ANSWERS.table([PAID, PAID])


def test_an_unknown_bill_has_no_cost_yet() -> None:
    assert LEDGER.table([ATTEMPT | {"billed": "unknown", "cost_nanousd": None}]).num_rows == 1
