"""What is counted of sequences: every row once in each distribution, whatever the shards."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.answers import PROVIDERS
from tasks.validate.distributions import EDGES, SAMPLE, Distributions, language
from tasks.validate.texts import Request
from tests.rows import sequence, sequences

ENGLISH = Request(("Where would you go if you had a week of time and a bicycle?",), "")


def counted(table: Any, name: str) -> dict[tuple[str, str], int]:
    return {(row["series"], row["key"]): row["rows"] for row in table.to_pylist() if row["distribution"] == name}


def test_rows_are_counted_by_dataset():
    found = Distributions()
    rows = [sequence(1), sequence(2, dataset="code", finish_reason="length"), sequence(3, provenance="reconstructed")]
    found.take(sequences(*rows), {}, {})
    table = found.table({"end_id_missing": 2, "unverified": 0})
    assert counted(table, "finish_reason") == {("chat", "stop"): 2, ("code", "length"): 1}
    assert counted(table, "provenance")["chat", "reconstructed"] == 1
    assert counted(table, "quarantined") == {("", "end_id_missing"): 2}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_every_length_is_in_the_bin_that_holds_it(lengths: list[int]):
    found = Distributions()
    found.take(sequences(*(sequence(n, prompt_ids=[5] * length) for n, length in enumerate(lengths))), {}, {})
    bins = {int(key): rows for (_, key), rows in counted(found.table({}), "prompt_length").items()}
    expected = Counter(max(edge for edge in EDGES.tolist() if edge <= length) for length in lengths)
    assert bins == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Where would you go if you had a week of time?", "en"),
        ("¿Dónde está la biblioteca más grande de la ciudad?", "es"),
        ("Welche Flüsse überquert man auf dem Weg nach Warschau?", "de"),
        ("请解释一下机器学习是什么，并且举出几个在日常生活中的例子。", "zh"),
        ("1 + 2 = 3", "unclear"),
        ("", "unclear"),
    ],
)
def test_the_language_of_a_text_is_told_or_unclear(text: str, code: str):
    assert language(text) == code


def test_languages_are_those_of_a_bounded_sample_with_the_smallest_ids():
    found = Distributions()
    late, early = range(SAMPLE, SAMPLE + 50), range(SAMPLE)
    for numbers in (late, early):
        rows = [sequence(n, dataset="late" if n >= SAMPLE else "early") for n in numbers]
        found.take(sequences(*rows), dict.fromkeys(range(len(rows)), ENGLISH), {0: "Ja, das ist eine sehr gute Frage!"})
    table = found.table({})
    assert counted(table, "prompt_language") == {("early", "en"): SAMPLE}
    assert counted(table, "answer_language") == {("early", "de"): 1}


def test_billed_counts_come_from_the_providers_table_or_from_the_rows():
    found = Distributions()
    row = {"provider": "A", "end_counted": True, "reasoning_inside": True, "rule_from": "inferred", "rows": 3}
    found.take_providers(
        PROVIDERS.table(
            [row | {"delta": -2, "delta_class": "trimmed_whitespace"}, row | {"delta": 0, "delta_class": "exact"}]
        )
    )
    found.take_providers(PROVIDERS.table([row | {"delta": None, "delta_class": "unverified"}]))
    assert counted(found.table({}), "billed_delta") == {("A", "-2"): 3, ("A", "0"): 3, ("A", "unknown"): 3}
    rows = Distributions()
    rows.take_deltas(sequences(sequence(1), sequence(2, provider="B", billed_delta=None, billed=None)))
    assert counted(rows.table({}), "billed_delta") == {("none named", "0"): 1, ("B", "unknown"): 1}


@settings(max_examples=20)
@given(st.permutations(range(8)), st.integers(1, 8))
def test_the_order_of_shards_changes_nothing(order: list[int], size: int):
    def of(numbers: list[int], step: int) -> Any:
        found = Distributions()
        for start in range(0, len(numbers), step):
            part = [sequence(n, dataset=f"d{n % 2}") for n in numbers[start : start + step]]
            found.take(sequences(*part), dict.fromkeys(range(len(part)), ENGLISH), {})
        return found.table({})

    assert of(list(order), size).equals(of(list(range(8)), 8))
