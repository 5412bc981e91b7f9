"""Hidden-state shards in a store, and training runs over them, for the tests of training."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch

from schemas.corpus import HIDDEN_STATES
from schemas.extraction import ExtractionSpec
from schemas.sections import TrainingSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.draft.model import Eagle3Draft
from tasks.states.layout import state_row
from tasks.states.source import Captured
from tasks.train.aux_scale import as_columns
from tasks.train.loader import SequenceStore
from tasks.train.loop import Training
from tasks.train.sequence import Sequence
from tests.train.small import random_sequence, random_teacher, small_draft

SPEC = TrainingSpec(
    ttt_steps=3,
    epochs=4,
    batch_sequences=3,
    learning_rate=3e-3,
    warmup_steps=2,
    checkpoint_every=4,
    evaluate_every=5,
)
HELDOUT_SPLIT_EVERY = 4  # every fourth sequence is held out


def state_row_of(number: int, sequence: Sequence, split: str, place: int = 0) -> dict[str, object]:
    """The row that extraction would write."""
    return state_row(
        {
            "sequence_id": f"{number:032x}",
            "split": split,
            "token_ids": sequence.token_ids.tolist(),
            "prompt_length": sequence.prompt_length,
        },
        Captured(place, sequence.aux, sequence.last, None),
        sequence.last.shape[1],
        ExtractionSpec(),
    )


def stored_states(sequences: list[Sequence], name: str, rows_per_group: int = 1, first: int = 0) -> Shards:
    """One artifact of hidden states, as the extraction step writes it."""
    rows = [
        state_row_of(first + n, sequence, "heldout" if n % HELDOUT_SPLIT_EVERY == 3 else "train", n)
        for n, sequence in enumerate(sequences)
    ]
    out = Workspace(f"extract_states/{name}.parquet")
    table: pa.Table = HIDDEN_STATES.table(rows)
    out.add_table(
        "hidden_states", "states.parquet", table, HIDDEN_STATES, compression="none", rows_per_group=rows_per_group
    )
    return out.publish({"aux_layers": [1, 2, 3]})


def small_states() -> list[Shards]:
    """Two shards with 18 training and 6 held-out sequences of different lengths."""
    sequences = [random_sequence(2 + n % 5, 1 + n % 9, seed=n) for n in range(24)]
    return [stored_states(sequences[:12], "a"), stored_states(sequences[12:], "b", rows_per_group=5, first=12)]


def small_training(states: list[Shards], spec: TrainingSpec = SPEC, seed: int = 7) -> tuple[Training, Eagle3Draft]:
    """A training run of a small float32 draft."""
    draft = small_draft(torch.float32)
    training = Training(
        draft,
        random_teacher(dtype=torch.float32),
        as_columns([0.5, 1.0, 2.0], draft),
        SequenceStore(states, "train"),
        SequenceStore(states, "heldout"),
        spec,
        seed,
    )
    return training, draft


def result(training: Training, draft: Eagle3Draft) -> tuple[list[bytes], list[object]]:
    """Weights as bytes and the curve: equal iff two runs ended the same, bit for bit."""
    weights = [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in draft.state_dict().values()]
    return weights, list(training.curve)


def run_whole(
    states: list[Shards], folder: Path, threads: int = 1, spec: TrainingSpec = SPEC
) -> tuple[list[bytes], list[object]]:
    """An undisturbed run."""
    folder.mkdir()
    training, draft = small_training(states, spec)
    training.run(folder, threads)
    return result(training, draft)
