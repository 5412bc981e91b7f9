"""Answers become sequences with exact ids, or quarantine rows that hold the whole answer; none is lost or made up."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.answers import ANSWERS, PROVIDERS
from schemas.errors import ContractViolation
from schemas.sections import CountingRule, ReconstructionSpec, TargetSpec
from tasks.reconstruct.assemble import SAMPLE, Assembled, Origin, assemble, provider_rows, sample
from tasks.reconstruct.counting import Counting
from tasks.reconstruct.task import reconstruct_sequences
from tasks.target.source import locate_target
from tasks.target.task import adopt_folder
from tests.reconstruct.given import CLOSE, END, PROMPTS, PROVIDER, kimi, said
from tests.rows import TEMPLATE, answer, answers, prompt_id, request, run_body, stored

ORIGIN = Origin("kimi-k2.5", TEMPLATE, '{"thinking":true}')


def assembled(*rows: dict[str, Any], rules: dict[str, Counting] | None = None) -> Assembled:
    return assemble(answers(*rows), kimi(), rules or {}, ORIGIN)


def test_a_rebuilt_answer_is_a_whole_sequence():
    (row,) = assembled(said("R", "A", 4, max_tokens=64, model="m", quantization="int4")).sequences.to_pylist()
    reasoning, content = kimi().codec.encode(["R", "A"])
    assert row == {
        "prompt_id": prompt_id(0),
        "root_id": prompt_id(0),
        "dataset": "chat",
        "request": request("Hi"),
        "prompt_ids": PROMPTS[True],
        "completion_ids": [*reasoning, CLOSE, *content, END],
        "loss_mask": [0] * len(PROMPTS[True]) + [1] * 4,
        "answer_text": "R</think>A<|im_end|>",
        "provenance": "reconstructed",
        "finish_reason": "stop",
        "max_tokens": 64,
        "billed": 4,
        "billed_delta": 0,
        "delta_class": "exact",
        "token_format": "kimi-k2.5",
        "template_sha256": TEMPLATE,
        "template_switches": '{"thinking":true}',
        "engine": "openrouter",
        "provider": PROVIDER,
        "model": "m",
        "quantization": "int4",
    }


def test_a_returned_answer_keeps_its_ids():
    output = [265, 75, 773, CLOSE, END]
    (row,) = assembled(said(None, None, 5, output_ids=output)).sequences.to_pylist()
    assert (row["completion_ids"], row["provenance"], row["answer_text"]) == (output, "returned", None)


def test_a_quarantined_answer_is_kept_whole():
    bad = said("Größe 👩‍👩‍👧‍👦\r\n", "A", 99, number=7)
    (row,) = assembled(bad).quarantine.to_pylist()
    assert (row["step"], row["source_key"], row["reason"]) == ("reconstruct", prompt_id(7), "unexplained")
    assert "99 were billed" in row["detail"]
    assert json.loads(row["raw"]) == bad


def test_one_id_too_many_is_not_made_good_by_one_too_few():
    found = assembled(said("R", "A", 3, number=0), said("R", "A", 5, number=1), said("R", "A", 4, number=2))
    assert found.sequences["prompt_id"].to_pylist() == [prompt_id(2)]
    assert found.quarantine.num_rows == 2


def test_an_empty_table_stays_empty():
    found = assembled()
    assert (found.sequences.num_rows, found.quarantine.num_rows, found.histogram) == (0, 0, {})


def test_more_ids_than_a_list_column_holds_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tasks.reconstruct.assemble._MOST_IDS", 20)
    with pytest.raises(ContractViolation, match=r"make generation\.shard_prompts smaller"):
        assembled(*(said("R", "A", 4, number=n) for n in range(9)))


def test_the_histogram_says_how_each_provider_counts():
    rows = [said("R", "A", 3, number=n) for n in range(3)] + [said("R", "A", 40, number=3), said("R", "A", number=4)]
    rules = {PROVIDER: Counting(CountingRule(end_counted=False), "pinned")}
    found = PROVIDERS.table(provider_rows(assembled(*rows, rules=rules).histogram, rules)).to_pylist()
    shared = {"provider": PROVIDER, "end_counted": False, "reasoning_inside": True, "rule_from": "pinned"}
    assert found == [
        {**shared, "delta": -37, "delta_class": "unexplained", "rows": 1},
        {**shared, "delta": 0, "delta_class": "exact", "rows": 3},
        {**shared, "delta": None, "delta_class": "unverified", "rows": 1},
    ]


def test_a_sample_takes_no_more_of_a_provider_than_it_needs():
    rows = [said("R", "A", 4, number=n, provider="p" if n % 2 else "q") for n in range(6)]
    rows += [said("R", "A", 4, number=6, finish_reason="length"), said("R", "A", number=7)]
    taken = Counter({"p": SAMPLE - 1})
    assert sample(answers(*rows), taken) == [0, 1, 2, 4]
    assert taken == {"p": SAMPLE, "q": 3}


TEXT = st.none() | st.sampled_from(
    ["", "R", " R\n", "</think>", "a<|im_end|>b", "<think>", "\ufffd", "e\u0301", "x" * 50]
)
ROWS = st.fixed_dictionaries(
    {
        "reasoning": TEXT,
        "content": TEXT,
        "billed": st.none() | st.integers(0, 60),
        "thinking": st.booleans(),
        "output_ids": st.none() | st.lists(st.sampled_from([5, 77, CLOSE, END, 163595, 163596, 163840]), max_size=4),
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", None, "other"]),
        "tool_calls": st.none() | st.just("[{}]"),
        "max_tokens": st.none() | st.integers(1, 8),
        "reasoning_tokens": st.none() | st.integers(0, 9),
        "prompt_tokens": st.none() | st.just(3),
    }
)


@settings(max_examples=60)
@given(st.lists(ROWS, max_size=6))
def test_every_answer_is_a_sequence_or_quarantined(drawn: list[dict[str, Any]]):
    rows = [said(number=number, **row) for number, row in enumerate(drawn)]
    found = assembled(*rows)
    kept = {row["prompt_id"]: row for row in found.sequences.to_pylist()}
    dropped = set(found.quarantine["source_key"].to_pylist())
    assert kept.keys() | dropped == {row["prompt_id"] for row in rows}
    assert not kept.keys() & dropped
    assert found.reasons().total() == len(dropped)
    for row in rows:
        if (made := kept.get(row["prompt_id"])) is None:
            continue
        if row["output_ids"] is not None:
            assert made["completion_ids"] == row["output_ids"]
        if row["completion_tokens"] is not None:
            assert len(made["completion_ids"]) == row["completion_tokens"]


def test_the_task_writes_a_shard_for_each_shard_of_answers(store: Path, tiny_target: Path):
    spec = TargetSpec(model=str(tiny_target))
    target = adopt_folder(spec, locate_target(spec))
    end = target.facts["eos_ids"][0]
    prompt = [1, 4093, 198, 28120, 2, 198, 1, 520, 9531, 198]
    given: dict[str, Any] = {"prompt_ids": prompt, "output_ids": [60, 61, end]}
    tables = [
        answers(answer(0, **given), answer(1, **given, completion_tokens=9)),
        answers(answer(2, **given | {"output_ids": [5]})),
    ]
    found = run_body(
        reconstruct_sequences, target, stored("answers", "answers", ANSWERS, tables), ReconstructionSpec(), spec
    )
    assert [table.num_rows for table in found.tables("sequences")] == [1, 0]
    assert found.rows("quarantine") == 2
    assert found.facts == {
        "rows_in": 3,
        "rows_out": 1,
        "quarantined": {"billed_count_differs": 1, "end_id_missing": 1},
        "delta_classes": {"exact": 2, "unexplained": 1},
        "counting": {"transformers": {"end_counted": True, "reasoning_inside": True, "from": "default"}},
    }
    assert sum(found.table("providers")["rows"].to_pylist()) == 3
    (row,) = found.table("sequences").to_pylist()
    assert (row["token_format"], row["template_switches"]) == (target.facts["token_format"], "{}")


def test_a_rule_is_read_off_all_shards_together(store: Path, tiny_target: Path):
    spec = TargetSpec(model=str(tiny_target))
    target = adopt_folder(spec, locate_target(spec))
    given: dict[str, Any] = {"prompt_ids": [1, 520, 9531, 198], "output_ids": [60, 61, 2], "completion_tokens": 2}
    tables = [answers(*(answer(first + n, **given) for n in range(2))) for first in range(0, 6, 2)]
    stored_answers = stored("answers", "answers", ANSWERS, tables)
    found = run_body(reconstruct_sequences, target, stored_answers, ReconstructionSpec(), spec)
    assert found.facts["rows_out"] == 6
    assert found.facts["counting"] == {
        "transformers": {"end_counted": False, "reasoning_inside": True, "from": "inferred"}
    }
    assert found.table("providers")["rule_from"].to_pylist() == ["inferred"]
