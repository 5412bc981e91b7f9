"""Every figure is what the rows say, computed by hand."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from tasks.benchmark.served.figures import Place, bucket_of, served_figures
from tests.benchmark.served.rows import passes_of, served, served_row

PLAIN = [served_row("a"), served_row("b", dataset="code", prompt_ids=[1] * 600)]
DRAFT = [
    served_row("a", (3, 1, 0), first_seconds=0.2, seconds=0.7),
    served_row("b", (2, 2), first_seconds=0.4, seconds=0.6, dataset="code", prompt_ids=[1] * 600),
]


def figures(plain_seconds: float = 4.0, seconds: float = 2.0) -> tuple[pa.Table, pa.Table]:
    passes = pa.concat_tables([passes_of(PLAIN, plain_seconds), passes_of(DRAFT, seconds)])
    return served(*PLAIN, *DRAFT), passes


def test_acceptance_is_counted_over_all_steps() -> None:
    answers, passes = figures()
    found = served_figures(answers, passes, [512], 200, 0)
    draft = found.of(Place("vllm", "draft", 3, 1, 4, 0.0, 1))
    assert draft is not None
    assert draft.verify_steps == 5
    assert draft.length == 1 + 8 / 5
    assert draft.rate == 8 / 15
    assert draft.joint == (4 / 5, 3 / 5, 1 / 5)
    assert draft.conditional == (4 / 5, 3 / 4, 1 / 3)
    assert draft.histogram == (1, 1, 2, 1)
    assert draft.low == pytest.approx(1 + 4 / 3)
    assert draft.high == 3.0


def test_speed_is_tokens_per_second_of_the_pass_and_its_ratio() -> None:
    answers, passes = figures()
    found = served_figures(answers, passes, [512], 200, 0)
    plain, draft = found.overall
    assert plain.tokens_per_second == 22 / 4
    assert draft.tokens_per_second == 15 / 2
    assert draft.speed_up == pytest.approx((15 / 2) / (22 / 4))
    assert math.isnan(plain.speed_up)
    assert math.isnan(plain.length)
    assert draft.first_seconds == pytest.approx(0.3)
    assert draft.between_seconds == pytest.approx((0.5 + 0.2) / (7 + 6))
    # prompt by prompt: 8 tokens in 0.7 s and 7 in 0.6 s, against 11 in 1.1 s
    assert draft.speed_low == pytest.approx((8 / 0.7) / 10)
    assert draft.speed_high == pytest.approx((7 / 0.6) / 10)


def test_datasets_and_lengths_of_prompts_have_figures_of_their_own() -> None:
    found = served_figures(*figures(), [512], 200, 0)
    assert [(one.dataset, one.length) for one in found.by_dataset if one.place.steps] == [
        ("chat", 1 + 4 / 3),
        ("code", 3.0),
    ]
    assert [(one.bucket, one.prompts) for one in found.by_context if one.place.steps] == [
        ("0 to 511", 1),
        ("512 or more", 1),
    ]


def test_counts_of_a_pass_stand_in_where_rows_have_none() -> None:
    rows = [row | dict.fromkeys(("verify_steps", "drafted", "accepted", "accepted_by_position")) for row in DRAFT]
    _, passes = figures()
    (one,) = served_figures(served(*rows), passes, [512], 200, 0).overall
    assert one.length == 1 + 8 / 5
    assert one.joint == (4 / 5, 3 / 5, 1 / 5)
    assert math.isnan(one.low), "an interval needs counts per prompt"


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, "0 to 511"), (511, "0 to 511"), (512, "512 to 2047"), (9000, "2048 or more")]
)
def test_a_bucket_begins_at_its_edge(length: int, bucket: str) -> None:
    assert bucket_of(length, [512, 2048]) == bucket
