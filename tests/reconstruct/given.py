"""Answers of text APIs for the tests of reconstruction, and their verdicts under the real tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from schemas.sections import CountingRule, ReconstructionSpec
from tasks.formats.registry import bind
from tasks.reconstruct.assemble import judge, observe
from tasks.reconstruct.counting import Counting, counting_rules
from tasks.reconstruct.row import Means, Row
from tests.rows import answer, answers
from tests.tokenizers import codec

OPEN, CLOSE, END = 163606, 163607, 163586
TAIL = [163588, 69702, 163601]  # <|im_assistant|>assistant<|im_middle|>
PROMPTS = {
    True: [163587, 2482, 163601, 13347, END, *TAIL, OPEN],
    False: [163587, 2482, 163601, 13347, END, *TAIL, OPEN, CLOSE],
}
PROVIDER = "ProviderA"


def kimi(spec: ReconstructionSpec | None = None, **more: Any) -> Means:
    """What Kimi K2.5's answers are judged with."""
    found = codec("kimi")
    return Means(bind("kimi-k2.5", found), found, spec or ReconstructionSpec(), **more)


def said(
    reasoning: str | None, content: str | None, billed: int | None = None, *, thinking: bool = True, **changes: Any
) -> dict[str, Any]:
    """A row of ANSWERS: an answer as text from an API that also sent Kimi's prompt ids."""
    row: dict[str, Any] = {
        "prompt_ids": PROMPTS[thinking],
        "output_ids": None,
        "reasoning": reasoning,
        "content": content,
        "completion_tokens": billed,
        "max_tokens": None,
        "engine": "openrouter",
        "provider": PROVIDER,
    }
    number = changes.pop("number", 0)
    return answer(number, **(row | changes))


def verdicts(
    rows: Iterable[dict[str, Any]], means: Means | None = None, rules: Mapping[str, Counting] | None = None
) -> list[Row]:
    """What becomes of each answer; without `rules` they are read off the answers, as a run does."""
    means = means or kimi()
    table = answers(*rows)
    if rules is None:
        rules = counting_rules(observe(table, means), means.spec.counting)
    return judge(table, means, rules)


def verdict(row: dict[str, Any], means: Means | None = None, rule: CountingRule | None = None) -> Row:
    """What becomes of one answer, under a known counting rule or the usual one."""
    (found,) = verdicts([row], means, {PROVIDER: Counting(rule, "pinned")} if rule else {})
    return found


def ids(row: Row) -> list[int]:
    """The ids of an accepted answer."""
    assert row.fault is None, row.fault
    assert row.completion is not None
    return row.completion.tolist()


def reason(row: Row) -> str:
    """Why an answer is quarantined."""
    assert row.fault is not None, ids(row)
    assert row.fault.detail
    return row.fault.reason


def raw_lines(*bodies: Any) -> str:
    """A file of raw answers."""
    return "".join(json.dumps(body, ensure_ascii=False) + "\n" for body in bodies)


def array(*numbers: int) -> np.ndarray:
    """Ids as rows hold them."""
    return np.array(numbers, np.int32)
