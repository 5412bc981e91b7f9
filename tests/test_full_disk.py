"""A disk that is too full stops a step before it writes anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from schemas.corpus import CORPUS, VOCABULARY
from schemas.errors import StoreError
from schemas.extraction import ExtractionSpec
from schemas.generation import GenerationSpec
from schemas.prompts import PROMPTS
from schemas.sections import BenchmarkSpec, ComputeSpec, ExportSpec, TargetSpec, TrainingSpec
from tasks.artifacts import store as store_module
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.benchmark.task import measure_acceptance
from tasks.draft.checkpoint import CONFIG, WEIGHTS, write_checkpoint
from tasks.draft.model import Eagle3Draft
from tasks.export.task import export_draft
from tasks.extract.task import extract_states, require_space_for_states
from tasks.generate.task import generate_answers
from tasks.target.convert import CONVERTIBLE
from tasks.target.task import prepare_target
from tasks.train.task import train_draft
from tests.rows import prompt, prompt_id, prompts, run_body, stored
from tests.train.small import small_draft

COMPUTE = ComputeSpec()
FREE_BYTES = 1000  # less than the least of the forecasts, which must each be counted, not only the reserve

Step = Callable[[], object]


def stored_prompts(part: str) -> Shards:
    table = prompts(*(prompt(f"Count to {number}.", split=part) for number in range(4)))
    return stored("gather_prompts", part, PROMPTS, [table])


def stored_corpus() -> Shards:
    table: pa.Table = CORPUS.table(
        {
            "sequence_id": prompt_id(number),
            "dataset": "chat",
            "split": "train",
            "token_ids": list(range(10, 30)),
            "prompt_length": 8,
        }
        for number in range(7)
    )
    return stored("build_corpus", "corpus", CORPUS, [table], tokens={"train": 7 * 20})


def stored_draft(draft: Eagle3Draft) -> Shards:
    space = Workspace("initialise_draft/given.parquet")
    write_checkpoint(space.ensure_folder(), draft, torch.float32)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    return space.publish({"aux_scale": [1.0, 1.0, 1.0]})


def convert(target: Shards, spec: TargetSpec) -> Step:
    return lambda: run_body(prepare_target, TargetSpec(model=CONVERTIBLE), [])


def generate(target: Shards, spec: TargetSpec) -> Step:
    prompts = stored_prompts("train")
    return lambda: run_body(generate_answers, target, prompts, GenerationSpec(), "quarantine", 0, spec, COMPUTE)


def extract(target: Shards, spec: TargetSpec) -> Step:
    corpus = stored_corpus()
    return lambda: run_body(extract_states, target, corpus, ExtractionSpec(), spec, COMPUTE)


def extract_all(target: Shards, spec: TargetSpec) -> Step:
    corpus = stored_corpus()
    return lambda: require_space_for_states(target, corpus, ExtractionSpec(), spec, COMPUTE)


def train(target: Shards, spec: TargetSpec) -> Step:
    draft = small_draft(torch.float32)
    rows = [
        {"draft_id": number, "target_id": target_id, "count": 1, "forced": False}
        for number, target_id in enumerate(draft.target_ids().tolist())
    ]
    vocabulary = stored("build_vocabulary", "vocabulary", VOCABULARY, [VOCABULARY.table(rows)])
    initial = stored_draft(draft)
    return lambda: run_body(train_draft, target, initial, vocabulary, [], TrainingSpec(), 0, spec, COMPUTE)


def export(target: Shards, spec: TargetSpec) -> Step:
    draft = stored_draft(small_draft(torch.float32))
    return lambda: run_body(export_draft, draft, target, ExportSpec())


def benchmark(target: Shards, spec: TargetSpec) -> Step:
    prompts = stored_prompts("benchmark")
    return lambda: run_body(measure_acceptance, target, None, prompts, "ngram", BenchmarkSpec(), 0, spec, COMPUTE)


@pytest.mark.parametrize(
    ("prepare", "purpose"),
    [
        (convert, f"dequantising {CONVERTIBLE}"),
        (generate, "the journal of answers"),
        (extract, "extracting the hidden states of 7 sequences"),
        (extract_all, "extracting the hidden states of 7 sequences"),
        (train, "training, with its checkpoints,"),
        (export, "exporting the draft"),
        (benchmark, "measuring the drafter ngram on 4 prompts"),
    ],
)
def test_a_full_disk_is_noticed_before_the_work(
    prepare: Callable[[Shards, TargetSpec], Step],
    purpose: str,
    store: Path,
    tiny_artifact: Shards,
    tiny_spec: TargetSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = prepare(tiny_artifact, tiny_spec)
    before = sorted(store.rglob("*"))
    usage = store_module.shutil.disk_usage(store)
    monkeypatch.setattr(store_module, "_RESERVE_BYTES", 0)
    monkeypatch.setattr(store_module.shutil, "disk_usage", lambda _: usage._replace(free=FREE_BYTES))
    with pytest.raises(StoreError, match=f"{purpose} needs about"):
        step()
    assert sorted(store.rglob("*")) == before
