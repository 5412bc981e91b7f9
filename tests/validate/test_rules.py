"""Each rule finds the row that breaks it, and good rows break none."""

from typing import Any

import pyarrow as pa
import pytest

from schemas.ragged import Ragged
from schemas.sections import AuditSpec, ReconstructionSpec
from tasks.validate.audit import Audit
from tasks.validate.figures import LOOP_BLOCK, LOOP_TAIL, Known, end_in_a_loop
from tasks.validate.rules import rules_for
from tests.rows import prompt_id, request
from tests.validate import kimi
from tests.validate.kimi import ARGUMENT, CALL, CALL_END, CLOSE, END, OPEN, SECTION, SECTION_END, USER, good, ids

STRICT = {"on_length": "drop", "providers": ["A"], "models": ["kimi-k2.5"], "quantizations": ["int4"]}
ORIGIN = {"provider": "A", "model": "kimi-k2.5", "quantization": "int4"}
DAMAGED = ids("so ", 9618, CLOSE, "x", END)

SPOILED: list[tuple[str, dict[str, Any]]] = [
    ("unreadable_request", {"request": "{"}),
    ("unreadable_request", {"request": '{"messages":' + "[" * 100_000}),
    ("unreadable_request", {"request": '{"messages":[{"role":"user"}]}'}),
    ("id_out_of_range", {"completion_ids": ids("x", CLOSE, 163840, END)}),
    ("id_out_of_range", {"completion_ids": ids("x", CLOSE, -1, END)}),
    ("id_out_of_range", {"prompt_ids": [163845, *kimi.prompt_ids()]}),
    ("other_template", {"template_sha256": "cd" * 32}),
    ("prompt_is_closed", {"prompt_ids": ids(USER, "user", 163601, "Hi", END)}),
    ("stopped_at_the_limit", {"completion_ids": ids("x", CLOSE, "y y"), "max_tokens": len(ids("x", CLOSE, "y y"))}),
    ("empty_completion", {"completion_ids": []}),
    ("end_id_inside", {"completion_ids": ids("x", CLOSE, "y", END, "z", END)}),
    ("end_id_missing", {"completion_ids": ids("x", CLOSE, "y")}),
    ("end_id_missing", {"completion_ids": [687, CLOSE, 687, 163533]}),  # the word piece "chas", taken for an end id
    ("end_id_after_cut", {"completion_ids": ids("x", CLOSE, "y", END), "finish_reason": "length"}),
    ("open_marker_in_answer", {"completion_ids": ids(OPEN, "x", CLOSE, "y", END)}),
    ("close_marker_missing", {"completion_ids": ids("x y z", END)}),
    ("close_marker_repeated", {"completion_ids": ids(CLOSE, "2+2 is 4.\n", CLOSE, "\n\nFour.", END)}),
    (
        "close_marker_unasked",
        {"prompt_ids": kimi.prompt_ids(thinking=False), "completion_ids": ids("x", CLOSE, "y", END)},
    ),
    (
        "tool_markers_unbalanced",
        {"completion_ids": ids("x", CLOSE, SECTION, CALL, "functions.ls:0", ARGUMENT, "{}", END)},
    ),
    ("role_marker_in_answer", {"completion_ids": ids("x", CLOSE, "y", USER, "z", END)}),
    ("longer_than_context", {"prompt_ids": [*([17285] * kimi.CONTEXT), *kimi.prompt_ids()]}),
    ("no_supervised_token", {"loss_mask": [0] * (len(kimi.prompt_ids()) + len(kimi.COMPLETION))}),
    ("mask_not_the_answer", {"loss_mask": [0] * (len(kimi.prompt_ids()) - 1) + [1] * (len(kimi.COMPLETION) + 1)}),
    ("mask_not_the_answer", {"loss_mask": [0] * (len(kimi.prompt_ids()) + 1) + [1] * (len(kimi.COMPLETION) - 1)}),
    ("text_differs", {"answer_text": kimi.TEXT.replace("four.", "four. ")}),
    ("text_differs", {"answer_text": ""}),
    ("replacement_character", {"completion_ids": DAMAGED}),
    ("replacement_character", {"completion_ids": [5885], "finish_reason": "length"}),
    ("billed_count_differs", {"billed_delta": -1}),
    ("billed_count_differs", {"billed": 99}),  # whatever the row says of the difference
    ("provider_not_allowed", {"provider": "B"}),
    ("provider_not_allowed", {"provider": None}),
    ("model_not_allowed", {"model": "kimi-k2"}),
    ("quantization_not_allowed", {"quantization": None}),
    ("quantization_not_allowed", {"quantization": "nvfp4"}),
    ("truncated", {"completion_ids": ids("x"), "finish_reason": "length"}),
    ("benchmark_overlap", {"request": request(kimi.BENCHMARK.upper())}),
    ("benchmark_overlap", {"request": request(f"Tell me: {kimi.BENCHMARK} Thanks")}),
    ("near_duplicate", {"request": good(1)["request"]}),
    ("duplicate_prompt", {"prompt_id": prompt_id(1)}),
    ("unverified", {"billed": None, "billed_delta": None, "delta_class": "unverified"}),
    ("unverified", {"billed": None, "billed_delta": None}),  # called exact, without a witness
]


def strict() -> Audit:
    return kimi.audit(ReconstructionSpec(unverified="quarantine"), **STRICT)


@pytest.mark.parametrize(("rule", "changes"), SPOILED)
def test_a_row_spoiled_in_one_place_is_quarantined_for_it(rule: str, changes: dict[str, Any]):
    spoiled = good(2, **(ORIGIN | changes))
    found = kimi.reasons(strict(), good(1, **ORIGIN), spoiled, good(3, **ORIGIN))
    assert found == {spoiled["prompt_id"]: rule}


def test_every_rule_that_quarantines_is_tried_here():
    rules = rules_for(AuditSpec.model_validate(STRICT), ReconstructionSpec(unverified="quarantine"))
    names = [rule.name for rule in rules]
    assert len(set(names)) == len(names)
    assert {rule.name for rule in rules if rule.kind != "warning"} == {name for name, _ in SPOILED}
    assert all(rule.sentence for rule in rules)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"answer_text": None},
        {"completion_ids": ids("x"), "finish_reason": "length"},
        {"completion_ids": ids("x", CLOSE, "y"), "finish_reason": "length"},
        {
            "completion_ids": ids(
                "x", CLOSE, SECTION, CALL, "functions.f:0", ARGUMENT, "{}", CALL_END, SECTION_END, END
            ),
            "finish_reason": "tool_calls",
        },
        {
            "completion_ids": ids("x", SECTION, CALL, "functions.f:0", ARGUMENT, "{}", CALL_END, SECTION_END, END),
            "finish_reason": "tool_calls",
        },
        {"prompt_ids": kimi.prompt_ids(thinking=False), "completion_ids": ids("Hello!", END)},
        {"completion_ids": ids("x", CLOSE, "👩\u200d👩\u200d👧 🇨🇭 cafe\u0301\r\n\0", END)},
        {"completion_ids": DAMAGED, "request": request("What does \ufffd mean in the middle of my text?")},
        {"completion_ids": DAMAGED, "request": r'{"messages":[{"content":"What is \uFFFD in here?","role":"user"}]}'},
        {"max_tokens": len(kimi.COMPLETION)},
        {"max_tokens": None},
        {"billed": None, "billed_delta": None, "delta_class": "unverified"},
        {"prompt_ids": [*([17285] * (kimi.CONTEXT - len(kimi.COMPLETION) - 1)), OPEN]},
    ],
)
def test_a_good_row_breaks_no_rule(changes: dict[str, Any]):
    assert kimi.reasons(kimi.audit(), good(1), good(2, **changes), good(3)) == {}


@pytest.mark.parametrize(
    ("warning", "changes"),
    [
        ("cut_by_length", {"completion_ids": ids("x y"), "finish_reason": "length", "max_tokens": 2}),
        ("cut_before_max_tokens", {"completion_ids": ids("x y"), "finish_reason": "length", "max_tokens": 3}),
        ("longer_than_max_tokens", {"max_tokens": len(kimi.COMPLETION) - 1}),
        ("ends_in_a_loop", {"completion_ids": [687] * LOOP_TAIL, "finish_reason": "length", "max_tokens": LOOP_TAIL}),
        ("unverified", {"billed": None, "billed_delta": None, "delta_class": "unverified"}),
    ],
)
def test_a_warning_counts_and_keeps_the_row(warning: str, changes: dict[str, Any]):
    audit = kimi.audit(max_quarantined_share=0)
    assert kimi.reasons(audit, good(1), good(2, **changes)) == {}
    audit.judge()
    warnings: Any = audit.facts()["warnings"]
    assert warnings[warning] == 1
    assert set(warnings) <= {warning, "cut_by_length"}


def test_a_row_that_breaks_two_rules_is_quarantined_for_the_first():
    both = good(2, completion_ids=ids("x", CLOSE, 163840), loss_mask=[0] * (len(kimi.prompt_ids()) + 3))
    assert kimi.reasons(kimi.audit(), both) == {prompt_id(2): "id_out_of_range"}


def test_the_marker_of_a_prompt_is_never_supervised():
    """Of K2.5 the open marker is prompt: a mask that begins after the header trains an id that is never sampled."""
    mask = [0] * (len(kimi.prompt_ids()) - 1) + [1] * (len(kimi.COMPLETION) + 1)
    assert kimi.reasons(kimi.audit(), good(1, loss_mask=mask)) == {prompt_id(1): "mask_not_the_answer"}


def test_rules_without_what_they_need_are_told_apart():
    bare = Audit(Known(), AuditSpec(), ReconstructionSpec())
    assert {rule.needs for rule in bare.unchecked} == {
        "vocabulary",
        "template",
        "format",
        "context",
        "tokenizer",
        "benchmark",
    }
    assert bare.take(kimi.table(good(1))).sequences.num_rows == 1
    assert "mask_not_the_answer" in {rule.name for rule in bare.rules}


def test_details_name_what_was_found():
    audit = kimi.audit()
    rows = (
        good(1),
        good(2, answer_text="Two plus 2"),
        good(3, request=request(kimi.BENCHMARK)),
        good(4, request=good(1)["request"]),
        good(5, completion_ids=DAMAGED),
    )
    quarantine = audit.take(kimi.table(*rows)).quarantine.to_pylist()
    details = {row["reason"]: row["detail"] for row in quarantine}
    assert "at character 9 the ids say 'two is four." in details["text_differs"]
    assert "the same words as benchmark prompt rivers 7" in details["benchmark_overlap"]
    assert f"the conversation of prompt {prompt_id(1)} is nearly the same" in details["near_duplicate"]
    assert "at character 3 of" in details["replacement_character"]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([7] * LOOP_TAIL, True),
        ([7] * (LOOP_TAIL - 1), False),
        ([1, 2, 3, *[7] * LOOP_TAIL], True),
        ([*[7] * LOOP_TAIL, 1], False),
        ([*range(LOOP_BLOCK)] * 3, True),
        ([*range(LOOP_BLOCK + 1)] * 3, False),
        ([*range(500)], False),
        ([], False),
    ],
)
def test_a_loop_is_a_short_block_over_and_over_at_the_end(numbers: list[int], expected: bool):
    column = pa.array([[1, 2], numbers, [3]], pa.list_(pa.int32()))
    assert end_in_a_loop(Ragged.of(column)).tolist() == [False, expected, False]


def test_an_empty_shard_is_audited():
    audit = kimi.audit()
    audited = audit.take(kimi.table())
    assert (audited.sequences.num_rows, audited.quarantine.num_rows) == (0, 0)
    assert audit.facts()["rows_in"] == 0
