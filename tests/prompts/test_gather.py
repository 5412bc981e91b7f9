"""Rows in are rows out plus quarantined; duplicates and benchmark questions stay out; shards keep trees whole."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.prompts.gather import Gathered, gather, spread
from tasks.prompts.locate import locate_sources
from tasks.prompts.selection import Prompt
from tests.prompts.given import assistant, user

BENCH = "How many legs has a spider?"
Gather = Callable[..., Gathered]


def talk(*texts: str) -> list[dict[str, Any]]:
    return [message for text in texts for message in (user(text), assistant())]


def lines(*talks: str | tuple[str, ...]) -> bytes:
    said = [talk(given) if isinstance(given, str) else talk(*given) for given in talks]
    return b"".join(json.dumps({"messages": messages}).encode() + b"\n" for messages in said)


def gather_in(folder: Path, *given_datasets: tuple[DatasetSpec, bytes]) -> Gathered:
    for dataset, content in given_datasets:
        Path(dataset.source).write_bytes(content)
    datasets = [dataset for dataset, _ in given_datasets]
    return gather(datasets, locate_sources(datasets), folder)


def named(folder: Path, name: str = "chat", split: str = "train", **more: Any) -> DatasetSpec:
    return DatasetSpec.model_validate({"name": name, "source": f"{folder}/{name}.jsonl", "split": split, **more})


@pytest.fixture
def gathered(tmp_path: Path) -> Gather:
    """Gathers training rows beside one benchmark question."""

    def run(train: bytes, bench: bytes = lines(BENCH), **more: Any) -> Gathered:
        return gather_in(tmp_path, (named(tmp_path, **more), train), (named(tmp_path, "bench", "benchmark"), bench))

    return run


def said(prompt: Prompt) -> str:
    return json.loads(prompt.messages)[-1]["content"]


def test_all_prompts_are_there_ordered_by_id(gathered: Gather):
    found = gathered(lines("a", "b", "c"))
    assert sorted(map(said, found.train)) == ["a", "b", "c"]
    ids = [prompt.prompt_id for prompt in found.train]
    assert ids == sorted(ids) == [prompt.root_id for prompt in found.train]
    assert [said(prompt) for prompt in found.benchmark] == [BENCH]


def test_a_turn_knows_its_parent_and_its_root(gathered: Gather):
    first, second, third = gathered(lines(("a", "b", "c"))).train
    assert (first.parent_id, second.parent_id, third.parent_id) == (None, first.prompt_id, second.prompt_id)
    assert {turn.root_id for turn in (first, second, third)} == {first.prompt_id}
    assert [(turn.turn, said(turn)) for turn in (first, second, third)] == [(0, "a"), (1, "b"), (2, "c")]


def test_turns_that_conversations_share_are_there_once(gathered: Gather):
    found = gathered(lines(("a", "b", "x"), ("a", "b", "y"), ("a", "c"), "d"))
    assert sorted(map(said, found.train)) == ["a", "b", "c", "d", "x", "y"]
    assert found.facts() | {"rows_read": 0, "quarantined_by_dataset": 0} == {
        "rows_read": 0,
        "rows_in": 5,
        "rows_out": 5,
        "conversations": {"train": 4, "benchmark": 1},
        "train": 6,
        "benchmark": 1,
        "shared_turns": 3,
        "left_by_limit": {},
        "quarantined": {},
        "quarantined_by_dataset": 0,
    }


def test_a_conversation_that_says_nothing_new_is_a_duplicate(gathered: Gather):
    found = gathered(lines(("a", "b"), "a", ("a", "b")))
    assert sorted(map(said, found.train)) == ["a", "b"]
    assert [(row.reason, row.source_key) for row in found.rejected] == [
        ("duplicate_prompt", "line 2"),
        ("duplicate_prompt", "line 3"),
    ]


def test_a_longer_conversation_is_no_duplicate_of_its_beginning(gathered: Gather):
    found = gathered(lines("a", ("a", "b")))
    assert (len(found.train), found.train.conversations, len(found.rejected)) == (2, 2, 0)


def test_of_duplicates_the_first_stays(tmp_path: Path):
    found = gather_in(
        tmp_path,
        (named(tmp_path, "one"), lines("a", "b", "a")),
        (named(tmp_path, "two"), lines("b")),
        (named(tmp_path, "bench", "benchmark"), lines(BENCH)),
    )
    assert {prompt.dataset for prompt in found.train} == {"one"}
    assert [(row.reason, row.dataset, row.detail) for row in found.rejected] == [
        ("duplicate_prompt", "one", "the same messages as one line 1"),
        ("duplicate_prompt", "two", "the same messages as one line 2"),
    ]


def test_duplicates_are_gone_before_a_limit_samples(gathered: Gather):
    found = gathered(lines(*["a"] * 16, *["b"] * 16, *["c"] * 16), limit=3)
    assert sorted(map(said, found.train)) == ["a", "b", "c"]


def test_benchmark_questions_do_not_enter_training(gathered: Gather):
    found = gathered(lines("a", BENCH.upper(), BENCH, ("b", BENCH), ("c", "d")))
    assert sorted(map(said, found.train)) == ["a", "c", "d"]
    assert found.facts()["quarantined"] == {"benchmark_overlap": 3}


def test_a_question_beyond_the_turns_that_are_taken_counts_too(gathered: Gather):
    found = gathered(lines("a", ("b", BENCH)), turns=1)
    assert list(map(said, found.train)) == ["a"]


def test_a_benchmark_row_left_by_its_limit_stays_out_of_training_too(tmp_path: Path):
    found = gather_in(
        tmp_path,
        (named(tmp_path), lines("a", "second question")),
        (named(tmp_path, "bench", "benchmark", limit=1), lines(BENCH, "Second Question?")),
    )
    assert list(map(said, found.train)) == ["a"]
    assert found.facts()["left_by_limit"] == {"bench": 1}


def test_of_a_benchmark_conversation_the_first_turn_is_asked(gathered: Gather):
    found = gathered(lines("a"), lines((BENCH, "And a fly?")))
    assert list(map(said, found.benchmark)) == [BENCH]


def test_a_limit_spreads_over_the_good_conversations(gathered: Gather):
    texts = [f"question {number}" for number in range(10)]
    found = gathered(lines(*texts[:5], "question 0", *texts[5:]) + b"torn", limit=5)
    assert sorted(map(said, found.train)) == texts[::2]
    assert found.facts() == {
        "rows_read": {"bench": 1, "chat": 12},
        "rows_in": 8,
        "rows_out": 6,
        "conversations": {"train": 5, "benchmark": 1},
        "train": 5,
        "benchmark": 1,
        "shared_turns": 0,
        "left_by_limit": {"chat": 5},
        "quarantined": {"duplicate_prompt": 1, "torn_last_line": 1},
        "quarantined_by_dataset": {"chat": {"duplicate_prompt": 1, "torn_last_line": 1}},
    }


def test_every_stretch_of_the_train_prompts_mixes_the_datasets(tmp_path: Path):
    names = ["one", "two", "three"]
    found = gather_in(
        tmp_path,
        *((named(tmp_path, name), lines(*(f"{name} {number}" for number in range(60)))) for name in names),
        (named(tmp_path, "bench", "benchmark"), lines(BENCH)),
    )
    train = list(found.train)
    for start in range(0, 180, 60):
        mix = Counter(prompt.dataset for prompt in train[start : start + 60])
        assert min(mix[name] for name in names) >= 8


@pytest.mark.parametrize("content", [b"\n \n", b"[]", b"\xef\xbb\xbf"])
def test_a_dataset_without_rows_is_an_error_that_says_so(gathered: Gather, content: bytes):
    with pytest.raises(PromptSourceError, match=r"'chat' \(source .*chat.jsonl\): none of its \d rows.*(empty|blank)"):
        gathered(content)


def test_a_dataset_without_any_prompt_is_an_error_that_says_why(gathered: Gather):
    with pytest.raises(PromptSourceError, match=r"none of its 1 rows is a prompt for adapter 'jsonl'; .*no_messages"):
        gathered(b'{"messages": []}\n')


def test_nothing_left_to_train_on_is_an_error_that_says_why(gathered: Gather):
    with pytest.raises(PromptSourceError, match=r"no train prompt is left .*'benchmark_overlap': 1"):
        gathered(lines(BENCH))


@given(count=st.integers(0, 300), limit=st.integers(0, 300))
def test_a_spread_is_as_long_as_asked_and_even(count: int, limit: int):
    places = list(spread(count, limit))
    assert len(places) == (min(count, limit) if limit else count)
    assert all(0 <= place < count for place in places)
    gaps = [after - before for before, after in pairwise(places)]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


TALKS = st.lists(st.lists(st.sampled_from(["a", "b", "c d", "C, D!", "", BENCH]), min_size=1, max_size=4).map(tuple))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(first=TALKS, second=TALKS, junk=st.binary(max_size=20), limit=st.integers(0, 4), size=st.integers(1, 6))
def test_rows_read_are_kept_quarantined_or_left_and_shards_keep_trees_whole(
    tmp_path: Path, first: list[Any], second: list[Any], junk: bytes, limit: int, size: int
):
    datasets = (
        (named(tmp_path, "one", limit=limit), lines("always", *first)),
        (named(tmp_path, "two", turns=2), lines("also", *second) + junk),
        (named(tmp_path, "bench", "benchmark"), lines(BENCH, BENCH)),
    )
    found = gather_in(tmp_path, *datasets)
    facts = found.facts()
    left = sum(found.left_by_limit.values())
    out = found.train.conversations + found.benchmark.conversations
    assert sum(found.rows_read.values()) == out + len(found.rejected) + left
    assert facts["rows_in"] == out + len(found.rejected)
    prompts = list(found.train)
    assert prompts == list(gather_in(tmp_path, *datasets).train)
    assert prompts == sorted(prompts, key=lambda prompt: (prompt.root_id, prompt.turn, prompt.prompt_id))
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    assert len(by_id) == len(prompts)
    assert all(p.parent_id is None or by_id[p.parent_id].turn == p.turn - 1 for p in prompts)
    shards = list(found.train.shards(size))
    assert [prompt for shard in shards for prompt in shard] == prompts
    roots = [{prompt.root_id for prompt in shard} for shard in shards]
    assert sum(map(len, roots)) == len(set[str]().union(*roots))
    assert all(len(shard) <= size or len(in_it) == 1 for shard, in_it in zip(shards, roots, strict=True))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(TALKS.flatmap(lambda talks: st.tuples(st.just(talks), st.permutations(talks))))
def test_prompts_do_not_depend_on_the_order_of_rows(tmp_path: Path, talks: tuple[list[Any], list[Any]]):
    bench = (named(tmp_path, "bench", "benchmark"), lines(BENCH))
    one, other = (gather_in(tmp_path, (named(tmp_path), lines("always", *order)), bench) for order in talks)
    assert [prompt.prompt_id for prompt in one.train] == [prompt.prompt_id for prompt in other.train]
