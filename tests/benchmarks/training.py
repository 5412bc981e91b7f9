"""Measures the training step on SmolLM2-135M's sizes with random states; prints ratios, asserts nothing.

    python -m tests.benchmarks.training

Share of the step's time in the model's own forward and backward (wanted: at least 0.85), share spent waiting for the
loader (wanted: about 0), trained rows per second of wall and of CPU time (the machine may be busy), and peak memory on
a corpus and on one eight times larger.
"""

from __future__ import annotations

import tasks.environment  # noqa: F401  (before torch)

# isort: split
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

from schemas.corpus import HIDDEN_STATES
from schemas.extraction import ExtractionSpec
from schemas.sections import TrainingSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import open_store
from tasks.artifacts.workspace import Workspace
from tasks.draft.config import DraftConfig
from tasks.states.layout import state_row
from tasks.states.source import Captured
from tasks.train.aux_scale import as_columns
from tasks.train.initialise import fresh_draft
from tasks.train.loader import SequenceStore
from tasks.train.loop import Training
from tasks.train.sequence import TeacherParts

HIDDEN, VOCAB, DRAFT_VOCAB = 576, 49152, 4096
STEPS = 25
PER_SHARD = 64
CORPORA = (64, 512)


def main() -> None:
    """Run every measurement in a process of its own and print."""
    print(f"SmolLM2-135M sizes, draft vocabulary {DRAFT_VOCAB}, 3 steps, head trained, {STEPS} optimiser steps")
    print("threads  batch  rows/s  rows/CPU-s  gradient share  update share  loader share  peak memory")
    for sequences, threads, batch in ((64, 1, 2), (64, 2, 2), (64, 2, 4), *((size, 1, 2) for size in CORPORA)):
        arguments = [sys.executable, "-m", "tests.benchmarks.training", str(sequences), str(threads), str(batch)]
        out = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
        print(
            f"{threads:7}  {batch:5}  {out['rows_per_second']:6.0f}  {out['rows_per_cpu_second']:10.0f}  "
            f"{out['gradient_share']:14.3f}  {out['update_share']:12.3f}  {out['load_share']:12.4f}  "
            f"{out['peak_mib']:7.0f} MiB with {sequences} sequences"
        )


def measure(sequences: int, threads: int, batch: int) -> dict[str, float]:
    """One run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "store" / "results"
        with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: results}):
            open_store()
            shards = [random_shard(first) for first in range(0, sequences, PER_SHARD)]
            training = random_training(shards, sequences, batch)
            before = time.process_time()
            training.run(Path(folder), threads)
            seconds = time.process_time() - before
    summary = training.clock.summary()
    step = sum(training.clock.seconds[name] for name in ("load", "gradient", "update"))
    return summary | {
        "rows_per_cpu_second": training.clock.rows / seconds,
        "update_share": training.clock.seconds["update"] / step,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def random_shard(first: int) -> Shards:
    """A shard of sequences with about 45 prompt and 100 answer tokens."""
    generator = torch.Generator().manual_seed(first)
    rows = []
    for number in range(first, first + PER_SHARD):
        prompt, answer = (int(torch.randint(*span, (1,), generator=generator)) for span in ((25, 66), (72, 129)))
        states = torch.randn(prompt + answer, 4 * HIDDEN, generator=generator).bfloat16()
        aux, last = states[:, : 3 * HIDDEN].contiguous(), states[prompt - 1 :, 3 * HIDDEN :].contiguous()
        row = {
            "sequence_id": f"{number:032x}",
            "split": "heldout" if number % PER_SHARD == 0 else "train",
            "token_ids": torch.randint(VOCAB, (prompt + answer,), generator=generator).tolist(),
            "prompt_length": prompt,
        }
        rows.append(state_row(row, Captured(number - first, aux, last, None), HIDDEN, ExtractionSpec()))
    out = Workspace(f"extract_states/{first}.parquet")
    out.add_table(
        "hidden_states",
        "states.parquet",
        HIDDEN_STATES.table(rows),
        HIDDEN_STATES,
        compression="none",
        rows_per_group=1,
    )
    return out.publish({"aux_layers": [1, 14, 26]})


def random_training(shards: list[Shards], sequences: int, batch: int) -> Training:
    """A training run of STEPS steps."""
    config = DraftConfig(
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=VOCAB,
        draft_vocab_size=DRAFT_VOCAB,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        max_position_embeddings=8192,
        aux_layers=(1, 14, 26),
    )
    draft = fresh_draft(config, torch.arange(DRAFT_VOCAB), 0)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.05
    train = SequenceStore(shards, "train")
    spec = TrainingSpec(
        ttt_steps=3,
        epochs=STEPS * batch / len(train) - 1e-9,
        batch_sequences=batch,
        evaluate_every=10**6,
        checkpoint_every=10**6,
    )
    return Training(
        draft,
        TeacherParts(embedding, embedding),
        as_columns([1.0, 1.0, 1.0], draft),
        train,
        SequenceStore(shards, "heldout"),
        spec,
        seed=0,
    )


if __name__ == "__main__":
    if arguments := sys.argv[1:]:
        print(json.dumps(measure(*map(int, arguments))))
    else:
        main()
