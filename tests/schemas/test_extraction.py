"""Contradictions in the recipe's extraction section are refused by field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.extraction import ExtractionSpec
from tasks.artifacts.keys import canonical

URL = "http://127.0.0.1:30000"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "vllm"}, "needs either an endpoint that runs or a launch"),
        ({"engine": "vllm", "endpoint": URL, "launch": {"engine": "vllm"}}, "either an endpoint"),
        ({"endpoint": URL}, "engine transformers asks no server"),
        ({"engine": "vllm", "launch": {"engine": "sglang"}}, "launch.engine is sglang, and extraction.engine vllm"),
        ({"engine": "sglang", "endpoint": URL}, "teacher_top_k is 0: SGLang gives the auxiliary states without"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ExtractionSpec.model_validate(fields)


def test_fields_that_came_later_leave_the_identity_of_a_plain_recipe_alone() -> None:
    names = canonical(ExtractionSpec()).decode()
    assert not [name for name in ("engine", "storage", "online", "launch", "endpoint") if f'"{name}"' in names]
    served = ExtractionSpec(engine="vllm", endpoint=URL)
    assert canonical(served) == canonical(served.model_copy(update={"endpoint": "http://other:1", "concurrency": 3}))
    assert canonical(served) != canonical(ExtractionSpec())
