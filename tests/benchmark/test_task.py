"""One shard measured: rows in are rows out or quarantined, finished batches are not decoded again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import DraftError, PromptSourceError
from schemas.prompts import PROMPTS
from schemas.sections import BenchmarkSpec, ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.benchmark import task as task_module
from tasks.benchmark.task import measure_acceptance
from tasks.draft.checkpoint import CONFIG, WEIGHTS, write_checkpoint
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.target.rendering import cut_batches
from tests.benchmark.models import make_prompts
from tests.rows import prompt, prompt_id, run_body, stored

TEXTS = ["Hi", "Name three rivers.", "What is a prime number?", "Sing!", "long " * 1100, "Why is the sky blue?"]
SPEC = BenchmarkSpec(max_tokens=10, chain=2, batch_size=2, temperatures=[0.0, 0.7])

Measure = Callable[..., Shards]


@pytest.fixture
def prompts(store: Path) -> Shards:
    rows = [
        prompt(
            text,
            prompt_id=prompt_id(number),
            root_id=prompt_id(number),
            dataset="chat" if number % 2 else "code",
            split="benchmark",
        )
        for number, text in enumerate(TEXTS)
    ]
    return stored("gather_prompts", "benchmark", PROMPTS, [PROMPTS.table(rows)])


@pytest.fixture
def measure(prompts: Shards, tiny_artifact: Shards, tiny_spec: TargetSpec) -> Measure:
    def run(drafter: str, draft: Shards | None = None, spec: BenchmarkSpec = SPEC, name: str = "one") -> Shards:
        compute = ComputeSpec()
        return run_body(
            measure_acceptance, tiny_artifact, draft, prompts, drafter, spec, 3, tiny_spec, compute, name=name
        )

    return run


def store_draft(**changes: Any) -> Shards:
    """A random draft for the tiny target, in the store."""
    config = DraftConfig(
        hidden_size=64,
        target_hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=49152,
        draft_vocab_size=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=1024,
        aux_layers=(1, 2, 3),
    ).model_copy(update=changes)
    draft = Eagle3Draft(config)
    draft.set_vocabulary(torch.arange(512) * 3)
    space = Workspace("export_draft/given.parquet")
    write_checkpoint(space.ensure_folder(), draft, torch.bfloat16)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    return space.publish()


def test_every_prompt_has_a_row_per_temperature_or_is_quarantined(measure: Measure) -> None:
    measured = measure("trained", store_draft())
    rows = measured.table("acceptance").to_pylist()
    kept = [prompt_id(number) for number in range(len(TEXTS)) if number != 4]
    assert [(row["prompt_id"], row["temperature"]) for row in rows] == [(p, t) for p in kept for t in (0.0, 0.7)]
    assert {row["drafter"] for row in rows} == {"trained"}
    assert {row["dataset"] for row in rows if row["prompt_id"] == prompt_id(1)} == {"chat"}
    (lost,) = measured.table("quarantine").to_pylist()
    assert (lost["source_key"], lost["reason"]) == (prompt_id(4), "prompt_too_long")


def test_greedy_output_of_every_drafter_is_that_of_none(measure: Measure) -> None:
    plain = {row["prompt_id"]: row for row in measure("none").table("acceptance").to_pylist()}
    assert {(row["chain"], row["temperature"], row["drafted"]) for row in plain.values()} == {(0, 0.0, 0)}
    for drafter, draft in (("ngram", None), ("untrained", store_draft())):
        for row in measure(drafter, draft, name=drafter).table("acceptance").to_pylist():
            if row["temperature"] == 0:
                assert row["output_ids"] == plain[row["prompt_id"]]["output_ids"]


def test_the_same_inputs_give_the_same_bytes(measure: Measure) -> None:
    draft = store_draft()
    assert measure("trained", draft, name="one").digest() == measure("trained", draft, name="two").digest()


def test_a_finished_batch_is_not_decoded_again(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure("ngram", name="undisturbed")
    decoded: list[int] = []

    def dying(*args: Any) -> Any:
        if len(decoded) == 2:
            raise KeyboardInterrupt
        decoded.append(len(args[3]))
        return real(*args)

    real = task_module.decode
    monkeypatch.setattr(task_module, "decode", dying)
    with pytest.raises(KeyboardInterrupt):
        measure("ngram")
    decoded[:] = []
    assert measure("ngram").digest() == whole.digest()
    assert decoded == [1], "of three batches, two were finished"


def test_a_torn_batch_is_decoded_again(measure: Measure) -> None:
    whole = measure("ngram", name="undisturbed")
    space = Workspace("measure_acceptance/one.parquet")
    space.path("batch-00001.parquet").write_bytes(b"PAR1 torn")
    assert measure("ngram").digest() == whole.digest()


def test_batches_are_cut_by_length_then_id() -> None:
    prompts = make_prompts(9, 20)
    batches = cut_batches(prompts, 4)
    assert [len(batch) for batch in batches] == [4, 4, 1]
    assert cut_batches(prompts[::-1], 4) == batches
    lengths = [len(prompt.ids) for batch in batches for prompt in batch]
    assert lengths == sorted(lengths)


def test_a_shard_without_one_usable_prompt_is_an_error(measure: Measure) -> None:
    with pytest.raises(PromptSourceError, match=f"none of the {len(TEXTS)} benchmark prompts of this shard"):
        measure("ngram", spec=SPEC.model_copy(update={"max_tokens": 1024}))


def test_a_missing_draft_is_named(measure: Measure) -> None:
    with pytest.raises(DraftError, match="'trained' needs a draft"):
        measure("trained")


def test_a_draft_of_another_target_is_refused(measure: Measure) -> None:
    with pytest.raises(DraftError, match="target_hidden_size is 48, the target has 64"):
        measure("trained", store_draft(target_hidden_size=48))
