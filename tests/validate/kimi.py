"""Sequences of a Kimi K2.5 target, with its real ids: good rows that a test spoils in one place."""

from functools import lru_cache
from typing import Any

import pyarrow as pa

from schemas.answers import SEQUENCES
from schemas.sections import AuditSpec, ReconstructionSpec
from tasks.formats.registry import bind
from tasks.overlap import Asked, BenchmarkIndex
from tasks.validate.audit import Audit
from tasks.validate.figures import Known
from tests import rows
from tests.rows import TEMPLATE, request
from tests.tokenizers import codec

FORMAT = "kimi-k2.5"
CONTEXT = 4096
END, OPEN, CLOSE = 163586, 163606, 163607
USER = 163587
SECTION, CALL, ARGUMENT, CALL_END, SECTION_END = 163595, 163597, 163598, 163599, 163596

BENCHMARK = "Which rivers would you cross on a walk from Lisbon to Warsaw, and where?"


@lru_cache(maxsize=4096)
def _encoded(text: str) -> tuple[int, ...]:
    return tuple(codec("kimi").encode([text])[0])


def ids(*parts: str | int) -> list[int]:
    """Text as the model writes it, and markers by their ids."""
    return [number for part in parts for number in (_encoded(part) if isinstance(part, str) else (part,))]


def prompt_ids(thinking: bool = True) -> list[int]:
    """A rendered prompt."""
    tail = (OPEN,) if thinking else (OPEN, CLOSE)
    return ids(USER, "user", 163601, "What is two plus two?", END, 163588, "assistant", 163601, *tail)


REASONING, ANSWER = "Two plus two is four.", "The answer is 4."
COMPLETION = ids(REASONING, CLOSE, ANSWER, END)
TEXT = f"{REASONING}</think>{ANSWER}<|im_end|>"


def good(number: int, **changes: Any) -> dict[str, Any]:
    """A good row; one whose answer is changed has no text to compare with, unless that is given."""
    own = {
        "request": request(f"What do you get from question number {number} about the number {number}?"),
        "prompt_ids": prompt_ids(),
        "completion_ids": COMPLETION,
        "answer_text": None if "completion_ids" in changes else TEXT,
        "max_tokens": 1024,
        "token_format": FORMAT,
    }
    return rows.sequence(number, **(own | changes))


def table(*of: dict[str, Any]) -> pa.Table:
    """Rows as a table that is not held against the contract, since rules are to find what is wrong."""
    return pa.Table.from_pylist(list(of), schema=SEQUENCES.arrow)


def known(benchmark: bool = True) -> Known:
    """What a run knows of its target."""
    kimi = codec("kimi")
    index = BenchmarkIndex([Asked("rivers 7", "ab" * 16, [BENCHMARK])] if benchmark else [])
    return Known(kimi.vocab_size, CONTEXT, TEMPLATE, kimi, bind(FORMAT, kimi, end_ids=[END]), index)


def audit(reconstruction: ReconstructionSpec | None = None, **spec: Any) -> Audit:
    """An audit that lets everything through its gates, unless told otherwise."""
    given = {"max_quarantined_share": 1, "max_duplicate_share": 1, "max_unexplained_share": 1, **spec}
    return Audit(known(), AuditSpec.model_validate(given), reconstruction or ReconstructionSpec())


def reasons(audit: Audit, *of: dict[str, Any]) -> dict[str, str]:
    """Why rows were quarantined, by prompt id."""
    quarantine = audit.take(table(*of)).quarantine
    return dict(zip(quarantine["source_key"].to_pylist(), quarantine["reason"].to_pylist(), strict=True))
