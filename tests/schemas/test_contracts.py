"""Each contract takes a good row, and refuses a bad one by the name of the column and the rule."""

from typing import Any

import pyarrow as pa
import pytest

from schemas import answers, corpus, measures, prompts, warm_start
from schemas.contract import REGISTRY, Contract, scalar_frame
from schemas.errors import ContractViolation
from schemas.ragged import Ragged
from tests.rows import answer, prompt, prompt_id, sequence

GOOD: dict[str, dict[str, Any]] = {
    "prompts": prompt("Hi"),
    "quarantine": {
        "step": "prompts",
        "dataset": "chat",
        "source_key": "line 1",
        "reason": "invalid_utf8",
        "detail": "",
        "raw": b"\xff",
    },
    "answers": answer(),
    "sequences": sequence(),
    "providers": {
        "provider": "api",
        "end_counted": True,
        "reasoning_inside": True,
        "rule_from": "inferred",
        "delta": 0,
        "delta_class": "exact",
        "rows": 5,
    },
    "distributions": {"distribution": "prompt_tokens", "series": "", "key": "16", "rows": 3},
    "audit": {"check": "id_out_of_range", "rows": 2, "failed": 1, "limit": 0},
    "corpus": {
        "sequence_id": prompt_id(1),
        "dataset": "chat",
        "split": "train",
        "token_ids": [1, 5, 6],
        "prompt_length": 1,
    },
    "vocabulary": {"draft_id": 0, "target_id": 7, "count": 0, "forced": True},
    "coverage": {"dataset": "chat", "split": "heldout", "tokens": 9, "covered": 9},
    "lost_mass": {"dataset": "chat", "positions": 9, "lost_mass": 0.02, "best_outside": 1},
    "hidden_states": {
        "place": 0,
        "sequence_id": prompt_id(1),
        "split": "train",
        "token_ids": [1, 5, 6],
        "prompt_length": 1,
        "hidden_size": 4,
        "dtype": "bfloat16",
        "aux": bytes(3 * 3 * 4 * 2),
        "last_from": 1,
        "last": bytes(2 * 4 * 2),
        "scales": b"",
        "top_k": 0,
        "top_ids": b"",
        "top_log_probabilities": b"",
    },
    "probe": {"check": "agreement", "value": 1.0, "limit": 0.99},
    "training_curve": {"step": 0, "kind": "loss", "position": 0, "value": 1.5},
    "readings": {
        "reading": "input_to_layer",
        "aux_layers": [1, 29, 57],
        "position": 0,
        "chains": 9,
        "survived": 4,
        "kept": True,
    },
    "simulated": {
        "group": "dataset",
        "name": "chat",
        "sequences": 2,
        "survived": [3, 1],
        "chains": [9, 8],
        "length": 1.4,
        "low": 1.2,
        "high": 1.6,
    },
    "acceptance": {
        "prompt_id": prompt_id(1),
        "dataset": "chat",
        "drafter": "trained",
        "temperature": 0.7,
        "chain": 2,
        "output_ids": [5],
        "verify_steps": 1,
        "drafted": 2,
        "accepted": 1,
        "accepted_by_position": [1, 0],
    },
}

BAD = [
    ("lost_mass", {"lost_mass": 1.5}, "lost_mass fails in_range"),
    ("lost_mass", {"best_outside": 10}, "row 0 fails outside_within_positions"),
    ("readings", {"survived": 10}, "row 0 fails survived_within_chains"),
    ("readings", {"aux_layers": [1, 29]}, "aux_layers.length fails"),
    ("prompts", {"prompt_id": "XYZ"}, "prompt_id fails str_matches"),
    ("prompts", {"dataset": ""}, "dataset fails str_length"),
    ("prompts", {"split": "test"}, "split fails isin"),
    ("prompts", {"messages": "[]"}, "messages fails str_startswith"),
    ("quarantine", {"reason": "Invalid UTF-8"}, "reason fails str_matches"),
    ("quarantine", {"source_key": ""}, "source_key fails str_length"),
    ("prompts", {"turn": 1}, "only_first_turns_have_no_parent"),
    ("prompts", {"tools": "[]"}, "tools fails str_startswith"),
    ("answers", {"request": "[]"}, "request fails str_startswith"),
    ("answers", {"max_tokens": 0}, "max_tokens fails greater_than_or_equal_to"),
    ("answers", {"completion_tokens": -1}, "completion_tokens fails greater_than_or_equal_to"),
    ("sequences", {"completion_ids": [], "loss_mask": [0, 0, 0]}, "completion_ids.length fails"),
    ("sequences", {"loss_mask": [0, 1]}, "row 0 fails one_mask_entry_per_id"),
    ("sequences", {"delta_class": "unexplained"}, "delta_class fails isin"),
    ("sequences", {"finish_reason": "error"}, "finish_reason fails isin"),
    ("sequences", {"completion_ids": [5, -1, 2]}, "completion_ids.min fails"),
    ("sequences", {"billed_delta": 1}, "billed_delta fails equal_to"),
    ("sequences", {"provenance": "guessed"}, "provenance fails isin"),
    ("sequences", {"template_sha256": "abc"}, "template_sha256 fails str_matches"),
    ("providers", {"rows": 0}, "rows fails"),
    ("providers", {"rule_from": "guessed"}, "rule_from fails isin"),
    ("distributions", {"rows": 0}, "rows fails"),
    ("audit", {"failed": 3}, "failed_within_rows"),
    ("corpus", {"prompt_length": 3}, "has_a_completion"),
    ("corpus", {"split": "benchmark"}, "split fails isin"),
    ("vocabulary", {"draft_id": 1}, "draft_ids_count_up"),
    ("vocabulary", {"count": -1}, "count fails"),
    ("coverage", {"covered": 10}, "covered_within_tokens"),
    ("hidden_states", {"aux": bytes(8)}, "one_state_per_id"),
    ("hidden_states", {"last": bytes(8)}, "one_state_per_id"),
    ("hidden_states", {"dtype": "float8", "aux": bytes(3 * 3 * 4), "last": bytes(8)}, "one_scale_per_state"),
    ("hidden_states", {"top_k": 2, "last": b""}, "likeliest_tokens_per_served_id"),
    ("hidden_states", {"dtype": "float16"}, "dtype fails isin"),
    ("probe", {"check": ""}, "check fails str_length"),
    ("training_curve", {"kind": "accuracy"}, "kind fails isin"),
    ("simulated", {"survived": [3]}, "one_count_per_position"),
    ("simulated", {"low": 2.0}, "interval_in_order"),
    ("acceptance", {"accepted": 3}, "accepted_within_drafted"),
    ("acceptance", {"accepted_by_position": [1]}, "one_count_per_position"),
    ("acceptance", {"drafter": "oracle"}, "drafter fails isin"),
]


def test_every_contract_of_the_tables_is_tried_here():
    modules = (answers, corpus, measures, prompts, warm_start)
    contracts = [value for module in modules for value in vars(module).values() if isinstance(value, Contract)]
    assert {contract.name for contract in contracts} == set(GOOD)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_row_is_taken_and_an_empty_table_too(name: str):
    contract = REGISTRY[name]
    assert contract.table([GOOD[name]]).to_pylist() == [GOOD[name]]
    assert contract.table([]).num_rows == 0


@pytest.mark.parametrize(("name", "changes", "message"), BAD)
def test_a_bad_row_is_refused_by_name(name: str, changes: dict[str, Any], message: str):
    with pytest.raises(ContractViolation, match=f"contract '{name}' is broken") as caught:
        REGISTRY[name].table([GOOD[name] | changes], "the shard")
    assert message in str(caught.value)
    assert str(caught.value).startswith("the shard: ")


@pytest.mark.parametrize("name", GOOD)
def test_a_null_is_refused_where_a_contract_allows_none(name: str):
    contract = REGISTRY[name]
    for column in GOOD[name]:
        if contract.arrow.field(column).nullable:
            assert contract.table([GOOD[name] | {column: None}]).to_pylist()[0][column] is None
            continue
        with pytest.raises(ContractViolation, match=column):
            REGISTRY[name].table([GOOD[name] | {column: None}])


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_or_unknown_column_is_refused(name: str):
    row = dict(GOOD[name])
    with pytest.raises(ContractViolation, match="extra"):
        REGISTRY[name].table([row | {"extra": 1}])
    row.popitem()
    with pytest.raises(ContractViolation, match="row 0 has columns"):
        REGISTRY[name].table([row])


@pytest.mark.parametrize("name", ["prompts", "answers", "sequences", "corpus", "hidden_states"])
def test_a_row_that_comes_twice_is_refused(name: str):
    with pytest.raises(ContractViolation, match="field_uniqueness"):
        REGISTRY[name].table([GOOD[name], GOOD[name]])


def test_another_type_of_list_is_refused():
    table = REGISTRY["corpus"].table([GOOD["corpus"]])
    wide = table.set_column(3, "token_ids", table["token_ids"].cast(pa.list_(pa.int64())))
    with pytest.raises(ContractViolation, match=r"token_ids: list<.*int64>"):
        REGISTRY["corpus"].check(wide, "the shard")


def test_a_value_that_fits_no_column_type_is_refused():
    with pytest.raises(ContractViolation, match="do not fit contract 'corpus'"):
        REGISTRY["corpus"].table([GOOD["corpus"] | {"token_ids": [2**40]}])


def test_extremes_of_a_sliced_list_column_are_those_of_its_rows():
    rows = [GOOD["corpus"] | {"sequence_id": str(first), "token_ids": [first, 5 * first]} for first in (1, 2, 3)]
    frame = scalar_frame(REGISTRY["corpus"].table(rows).slice(1, 1))
    assert (frame["token_ids.min"][0], frame["token_ids.max"][0]) == (2, 10)


def test_ragged_figures_follow_the_rows_of_a_slice():
    column = pa.chunked_array([[[9]], [[1, 2], [], [3]]], pa.list_(pa.int32()))
    ragged = Ragged.of(column.slice(1))
    assert [row.tolist() for row in ragged.rows()] == [[1, 2], [], [3]]
    assert ragged.last().tolist() == [2, -1, 3]
    assert ragged.count(ragged.values > 1).tolist() == [1, 0, 1]
    assert ragged.owners().tolist() == [0, 0, 2]
    assert ragged.positions().tolist() == [0, 1, 0]
    assert Ragged.of(column.slice(4)).rows() == []
    assert Ragged.of(column.slice(2, 1)).last().tolist() == [-1]
