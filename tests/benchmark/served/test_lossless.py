"""Differences of greedy answers: found, placed, and told apart from ties by the target's own scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from schemas.sections import ComputeSpec, TargetSpec
from schemas.served import SERVED
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.benchmark.served.lossless import compare_greedy, judge_differences
from tasks.target.model import Target
from tests.benchmark.served.rows import served, served_row
from tests.rows import run_body

PROMPT = [1, 520, 300]


def test_equal_answers_are_identical_and_others_are_placed() -> None:
    plain = [served_row("a"), served_row("b"), served_row("c", prompt_ids=[9])]
    own = [served_row("a", (3, 3, 1)), served_row("b", (3, 3, 1)), served_row("c", (3, 3, 1))]
    own[1]["output_ids"][4] = 7
    (compared,) = compare_greedy([*plain, *own])
    assert (compared.compared, compared.identical, compared.astray) == (2, 1, 1)
    (difference,) = compared.differences
    assert (difference.prompt_id, difference.position) == ("b", 4)
    assert (difference.plain_token, difference.token) == (104, 7)
    assert difference.prefix == (1, 2, 3, 100, 101, 102, 103)


def test_an_answer_that_goes_on_where_the_plain_one_has_ended_differs_there() -> None:
    (compared,) = compare_greedy([served_row("a"), served_row("a", (3, 3, 2))])
    assert compared.differences[0].plain_token == -1
    assert compared.differences[0].position == 11


def test_answers_of_another_engine_or_temperature_are_not_compared() -> None:
    rows = [served_row("a", engine="sglang"), served_row("a", temperature=0.7), served_row("a", (3, 3, 1))]
    assert compare_greedy(rows) == []


@pytest.mark.usefixtures("store")
def test_the_target_says_which_differences_are_ties(
    tiny_artifact: Shards, tiny_spec: TargetSpec, tiny_loaded: Target, tmp_path: Path
) -> None:
    scores = tiny_loaded.lm_head(tiny_loaded.hidden(torch.tensor([PROMPT]))[0, -1])
    best, second = scores.topk(2).indices.tolist()
    worst = int(scores.argmin())
    margin = float(scores[best] - scores[second])
    rows = []
    for name, token in (("tie", second), ("fault", worst)):
        rows.append(served_row(name, prompt_ids=PROMPT, output_ids=[best, 5, 5]))
        rows.append(served_row(name, (2,), prompt_ids=PROMPT, output_ids=[token, 5, 5]))
    space = Workspace("measure_run/given.parquet")
    space.add_table("served", "served.parquet", served(*rows), SERVED)
    run = space.publish()
    judged = run_body(
        judge_differences, tiny_artifact, [run], margin * 1.01, tiny_spec, ComputeSpec()
    ).table.to_pylist()  # type: ignore[attr-defined]
    assert {row["prompt_id"]: row["kind"] for row in judged} == {"tie": "near_tie", "fault": "real"}
    assert {row["position"] for row in judged} == {0}
    assert judged[1]["margin"] == pytest.approx(margin, rel=1e-4)
