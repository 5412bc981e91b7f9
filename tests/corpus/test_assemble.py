"""The corpus is the same rows in the same order however the input was sharded, and nothing is lost on the way."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.answers import SEQUENCES
from schemas.errors import ArtifactInvalid, RecipeError
from schemas.sections import CorpusSpec
from tasks.corpus.assemble import Plan, corpus_shards, plan_corpus, quarantine_table, take_rows
from tasks.corpus.task import build_corpus
from tests.rows import prompt_id, run_body, sequence, sequences, stored

SPEC = CorpusSpec(max_length=16, heldout=2, shard_sequences=3)


def rows(count: int, dataset: str = "chat", first: int = 0) -> list[dict[str, Any]]:
    return [
        sequence(number, dataset=dataset, prompt_ids=[1, number], completion_ids=[number + 2, 9, 9][: 2 + number % 2])
        for number in range(first, first + count)
    ]


def built(
    tables: list[pa.Table], spec: CorpusSpec = SPEC, seed: int = 0, **options: Any
) -> tuple[Plan, dict[str, list[pa.Table]]]:
    plan = plan_corpus(tables, spec, seed)
    splits = {
        split: list(corpus_shards(lambda: tables, plan, split, spec.shard_sequences, **options))
        for split in ("train", "heldout")
    }
    return plan, splits


def flat(shards: list[pa.Table]) -> list[dict[str, Any]]:
    return [row for shard in shards for row in shard.to_pylist()]


def test_a_row_is_prompt_and_completion_joined():
    _, splits = built([sequences(*rows(8))])
    by_id = {row["sequence_id"]: row for row in flat(splits["train"]) + flat(splits["heldout"])}
    assert len(by_id) == 8
    for given_row in rows(8):
        row = by_id[given_row["prompt_id"]]
        assert row["token_ids"] == given_row["prompt_ids"] + given_row["completion_ids"]
        assert row["prompt_length"] == len(given_row["prompt_ids"])
        assert row["dataset"] == "chat"


def test_shards_have_the_size_asked_for():
    _, splits = built([sequences(*rows(10))])
    assert [shard.num_rows for shard in splits["train"]] == [3, 3, 2]
    assert [shard.num_rows for shard in splits["heldout"]] == [2]
    assert {row["split"] for row in flat(splits["heldout"])} == {"heldout"}


def test_another_seed_gives_another_order():
    table = sequences(*rows(50))
    orders = [[row["sequence_id"] for row in flat(built([table], seed=seed)[1]["train"])] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_held_out_rows_are_spread_over_the_datasets_in_proportion():
    table = sequences(*rows(40, "large"), *rows(20, "middle", 40), *rows(20, "small", 60))
    _, splits = built([table], CorpusSpec(max_length=16, heldout=8, shard_sequences=3))
    assert Counter(row["dataset"] for row in flat(splits["heldout"])) == {"large": 4, "middle": 2, "small": 2}


def conversation_rows(*turns: int, first: int = 0) -> list[dict[str, Any]]:
    """Conversations with these numbers of turns."""
    starts = [first + sum(turns[:place]) for place in range(len(turns))]
    return [
        sequence(start + turn, root_id=prompt_id(start), prompt_ids=[1, start + turn])
        for start, count in zip(starts, turns, strict=True)
        for turn in range(count)
    ]


@given(turns=st.lists(st.integers(1, 6), min_size=3, max_size=30), heldout=st.integers(1, 20), seed=st.integers(0, 5))
def test_no_conversation_is_both_trained_on_and_held_out(turns: list[int], heldout: int, seed: int):
    given_rows = conversation_rows(*turns)
    assume(heldout < len(given_rows))
    spec = CorpusSpec(max_length=16, heldout=heldout, shard_sequences=64)
    _, splits = built([sequences(*given_rows)], spec, seed)
    root_of = {row["prompt_id"]: row["root_id"] for row in given_rows}
    sides = {split: {root_of[row["sequence_id"]] for row in flat(shards)} for split, shards in splits.items()}
    assert sides["train"]
    assert sides["heldout"]
    assert not sides["train"] & sides["heldout"]
    count = sum(shard.num_rows for shard in splits["heldout"])
    assert abs(count - heldout) <= max(turns), "about as many as asked for"


def test_as_many_are_held_out_as_asked_where_conversations_have_one_turn():
    for count in range(1, 30):
        spec = CorpusSpec(max_length=16, heldout=count, shard_sequences=64)
        _, splits = built([sequences(*rows(30))], spec)
        assert [shard.num_rows for shard in splits["heldout"]] == [count]


def test_one_conversation_cannot_be_split():
    with pytest.raises(RecipeError, match="all 5 sequences that can be used are turns of one conversation"):
        built([sequences(*conversation_rows(5))])


def test_every_turn_is_a_row_with_the_prefix_that_serving_saw():
    turns = conversation_rows(2, 1, 1, 1, 1)
    turns[1] |= {"prompt_ids": [1, 0, 60, 7], "loss_mask": [0, 0, 0, 0, 1, 1, 1]}  # its own prefix, not turn 0's ids
    _, splits = built([sequences(*turns)])
    by_id = {row["sequence_id"]: row for row in flat(splits["train"]) + flat(splits["heldout"])}
    assert by_id[prompt_id(0)]["token_ids"] == [1, 0, 60, 61, 2]
    assert by_id[prompt_id(1)]["token_ids"] == [1, 0, 60, 7, 60, 61, 2]
    assert by_id[prompt_id(1)]["prompt_length"] == 4


def test_a_loss_mask_that_is_not_the_completion_is_refused():
    shifted = sequence(7, loss_mask=[0, 0, 1, 1, 1, 1])
    with pytest.raises(ArtifactInvalid, match="a loss mask is not 0 over its prompt"):
        built([sequences(*rows(6), shifted)])


def test_a_row_that_is_too_long_or_too_short_is_quarantined_with_its_ids():
    long = sequence(90, prompt_ids=[5] * 14, completion_ids=[6, 7, 8])
    short = sequence(91, completion_ids=[2])
    fits = sequence(92, prompt_ids=[5] * 14, completion_ids=[6, 7])
    tables = [sequences(long, *rows(3)), sequences(short, fits)]
    plan, splits = built(tables)
    quarantined = quarantine_table(lambda: tables, plan, SPEC).to_pylist()
    assert [(row["source_key"], row["reason"]) for row in quarantined] == [
        (prompt_id(90), "too_long"),
        (prompt_id(91), "too_short"),
    ]
    assert quarantined[0]["detail"] == "17 ids, 3 of them completion; corpus.max_length is 16"
    assert json.loads(quarantined[0]["raw"]) == long
    assert prompt_id(92) in {row["sequence_id"] for row in flat(splits["train"]) + flat(splits["heldout"])}
    assert plan.facts()["quarantined"] == {"too_long": 1, "too_short": 1}


@pytest.mark.parametrize(
    "tables", [[], [sequences()], [sequences(*rows(2))], [sequences(sequence(completion_ids=[2]))]]
)
def test_nothing_left_to_train_on_is_an_error_that_names_the_field(tables: list[pa.Table]):
    with pytest.raises(
        RecipeError, match=r"corpus\.heldout is 2, and \d of \d sequences can be used.*lower corpus\.held"
    ):
        plan_corpus(tables, SPEC, 0)


def test_rows_are_taken_by_number_in_any_order_and_more_than_once():
    tables = [sequences(*rows(3)), sequences(), sequences(*rows(2, first=3))]
    wanted = [4, 0, 3, 2]
    taken = take_rows(iter(tables), pa.array(wanted).to_numpy())
    assert taken["prompt_id"].to_pylist() == [prompt_id(number) for number in wanted]


@st.composite
def cut_tables(draw: st.DrawFn, count: int = 12) -> list[pa.Table]:
    order = draw(st.permutations(rows(count // 2) + rows(count // 2, "code", count // 2)))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=4)))
    return [sequences(*order[start:stop]) for start, stop in zip([0, *cuts], [*cuts, count], strict=True)]


@settings(max_examples=25)
@given(tables=cut_tables(), seed=st.integers(0, 5), pass_ids=st.integers(1, 40))
def test_the_corpus_does_not_depend_on_shards_order_or_passes(tables: list[pa.Table], seed: int, pass_ids: int):
    whole = [sequences(*rows(6), *rows(6, "code", 6))]
    expected = built(whole, seed=seed)[1]
    plan, found = built(tables, seed=seed, pass_ids=pass_ids)
    assert {split: flat(shards) for split, shards in found.items()} == {
        split: flat(shards) for split, shards in expected.items()
    }
    facts = plan.facts()
    assert (facts["rows_in"], facts["rows_out"]) == (12, 12)


def test_a_small_pass_reads_the_input_again_instead_of_holding_more():
    tables = [sequences(*rows(6)), sequences(*rows(6, first=6))]
    plan = plan_corpus(tables, SPEC, 0)
    readings = 0

    def reader() -> Iterator[pa.Table]:
        nonlocal readings
        readings += 1
        yield from tables

    assert sum(shard.num_rows for shard in corpus_shards(reader, plan, "train", 3, pass_ids=1)) == 10
    assert readings == 4


def test_the_task_writes_train_and_held_out_shards(store: Path):
    audited = stored("audited", "sequences", SEQUENCES, [sequences(*rows(5)), sequences(*rows(5, first=5))])
    found = run_body(build_corpus, audited, SPEC, 7)
    names = [Path(shard.path).name for shard in found.part("corpus")]
    assert names == ["train-00000.parquet", "train-00001.parquet", "train-00002.parquet", "heldout-00000.parquet"]
    assert found.rows("quarantine") == 0
    assert found.facts == {
        "rows_in": 10,
        "rows_out": 10,
        "quarantined": {},
        "sequences": {"train": 8, "heldout": 2},
        "tokens": found.facts["tokens"],
        "completion_tokens": found.facts["completion_tokens"],
    }
    assert sum(found.facts["tokens"].values()) == 45
    assert sum(found.facts["completion_tokens"].values()) == 25
    assert run_body(build_corpus, audited, SPEC, 7, name="two").digest() == found.digest()
