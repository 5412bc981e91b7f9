"""Rows in are rows out plus quarantined; duplicates and benchmark questions stay out; the order is always the same."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.prompts.gather import Gathered, gather, spread

BENCH = "How many legs has a spider?"


def dataset(name: str = "chat", split: str = "train", **more: object) -> DatasetSpec:
    return DatasetSpec.model_validate({"name": name, "source": f"{name}.jsonl", "split": split, **more})


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"messages": [{"role": "user", "content": text}]}).encode() + b"\n" for text in texts)


def gathered(train: bytes, bench: bytes = lines(BENCH), limit: int = 0) -> Gathered:
    return gather([dataset(limit=limit), dataset("bench", "benchmark")], [train, bench])


def test_all_prompts_are_there_ordered_by_id():
    found = gathered(lines("a", "b", "c"))
    assert sorted(prompt.user_turns[0] for prompt in found.train) == ["a", "b", "c"]
    assert [prompt.prompt_id for prompt in found.train] == sorted(prompt.prompt_id for prompt in found.train)
    assert [prompt.user_turns for prompt in found.benchmark] == [(BENCH,)]


def test_of_duplicates_the_first_stays():
    found = gather(
        [dataset("one"), dataset("two"), dataset("bench", "benchmark")],
        [lines("a", "b", "a"), lines("b"), lines(BENCH)],
    )
    assert sorted(prompt.user_turns[0] for prompt in found.train) == ["a", "b"]
    assert {prompt.dataset for prompt in found.train} == {"one"}
    assert [(row.reason, row.dataset, row.detail) for row in found.rejected] == [
        ("duplicate_prompt", "one", "the same messages as one line 1"),
        ("duplicate_prompt", "two", "the same messages as one line 2"),
    ]


def test_benchmark_questions_do_not_enter_training():
    found = gathered(lines("a", BENCH.upper(), BENCH), lines(BENCH))
    assert [prompt.user_turns for prompt in found.train] == [("a",)]
    assert found.facts()["quarantined"] == {"benchmark_overlap": 2}


def test_a_benchmark_row_left_by_its_limit_stays_out_of_training_too():
    found = gather(
        [dataset(), dataset("bench", "benchmark", limit=1)],
        [lines("a", "second question"), lines(BENCH, "Second Question?")],
    )
    assert [prompt.user_turns for prompt in found.train] == [("a",)]
    assert found.facts()["left_by_limit"] == {"bench": 1}


def test_a_limit_spreads_over_the_good_rows():
    texts = [f"question {number}" for number in range(10)]
    found = gathered(lines(*texts[:5], "question 0", *texts[5:]) + b"torn", limit=5)
    assert sorted(prompt.user_turns[0] for prompt in found.train) == texts[::2]
    assert found.facts() == {
        "rows_read": {"chat": 12, "bench": 1},
        "rows_in": 8,
        "rows_out": 6,
        "train": 5,
        "benchmark": 1,
        "left_by_limit": {"chat": 5},
        "quarantined": {"duplicate_prompt": 1, "torn_last_line": 1},
        "quarantined_by_dataset": {"chat": {"duplicate_prompt": 1, "torn_last_line": 1}},
    }


def test_every_stretch_of_the_train_prompts_mixes_the_datasets():
    names = ["one", "two", "three"]
    found = gather(
        [*map(dataset, names), dataset("bench", "benchmark")],
        [*(lines(*(f"{name} {number}" for number in range(60))) for name in names), lines(BENCH)],
    )
    for start in range(0, 180, 60):
        mix = Counter(prompt.dataset for prompt in found.train[start : start + 60])
        assert min(mix[name] for name in names) >= 8


def test_a_dataset_without_any_prompt_is_an_error_that_says_why():
    with pytest.raises(PromptSourceError, match=r"'chat' \(source chat.jsonl\): none of its 1 rows.*no_messages"):
        gathered(b'{"prompt": "x"}\n')


def test_nothing_left_to_train_on_is_an_error_that_says_why():
    with pytest.raises(PromptSourceError, match=r"no train prompt is left .*'benchmark_overlap': 1"):
        gathered(lines(BENCH))


@given(count=st.integers(0, 300), limit=st.integers(0, 300))
def test_a_spread_is_as_long_as_asked_and_even(count: int, limit: int):
    places = spread(count, limit)
    assert len(places) == (min(count, limit) if limit else count)
    assert all(0 <= place < count for place in places)
    gaps = [after - before for before, after in pairwise(places)]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


TEXTS = st.lists(st.sampled_from(["a", "b", "c d", "C, D!", BENCH, "", "spider"]), max_size=8)


@given(first=TEXTS, second=TEXTS, junk=st.binary(max_size=20), limit=st.integers(0, 4))
def test_rows_read_are_kept_quarantined_or_left_by_a_limit(
    first: list[str], second: list[str], junk: bytes, limit: int
):
    datasets = [dataset("one", limit=limit), dataset("two"), dataset("bench", "benchmark")]
    contents = [lines("always", *first), lines("also", *second) + junk, lines(BENCH, BENCH)]
    found = gather(datasets, contents)
    facts = found.facts()
    left = sum(found.left_by_limit.values())
    assert sum(found.rows_read.values()) == len(found.train) + len(found.benchmark) + len(found.rejected) + left
    assert facts["rows_in"] == facts["rows_out"] + len(found.rejected)  # pyright: ignore[reportOperatorIssue]
    assert not {prompt.prompt_id for prompt in found.train} & {prompt.prompt_id for prompt in found.benchmark}
    assert gather(datasets, contents) == found
