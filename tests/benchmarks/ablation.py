"""What each choice of the training recipe is worth: one change at a time, equal CPU-seconds, real states.

    EYAS_STORE=store python -m tests.benchmarks.ablation --seconds 30

The store must hold a finished run (`make demo`). Prints simulated acceptance on its held-out sequences (chains in the
full vocabulary, 1 + Σ P(survive i), with a 95 % interval by sequences), for runs as short as the budget says: what
learns faster in a minute need not end higher after an hour, and one seed tells apart only what the intervals do.
"""

from __future__ import annotations

import tasks.environment  # noqa: F401  (before torch)

# isort: split
import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from schemas.sections import DraftSpec, TargetSpec, TrainingSpec, VocabularySpec
from tasks.artifacts.artifact import Shards
from tasks.corpus.vocabulary import choose_vocabulary
from tasks.draft.model import Eagle3Draft
from tasks.train.aux_scale import as_columns
from tasks.train.fused_loss import Objective
from tasks.train.gradient import crew_of
from tasks.train.loader import SequenceSource, SequenceStore
from tasks.train.objective import TrainingTimeTest
from tasks.train.sequence import Sequence, TeacherParts
from tasks.train.simulated import HeldOut
from tasks.train.task import make_draft
from tasks.train.teacher import teacher_parts
from tests.benchmarks.stored_run import SEED, StoredRun, train_for

CHAIN = 3


@dataclass(frozen=True)
class Variant:
    """The demo's recipe with one change."""

    name: str
    training: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 4096
    sees: Callable[[Sequence], Sequence] = lambda sequence: sequence


def without_first_row(sequence: Sequence) -> Sequence:
    """As a mask that is not shifted with the tokens trains: the first row that is ever served gets nothing."""
    return dataclasses.replace(sequence, prompt_length=sequence.prompt_length + 1)


VARIANTS = [
    Variant("the demo's recipe"),
    Variant("the same, another order", {"seed": 1}),
    Variant("mask by the row's own token", sees=without_first_row),
    Variant("random first weights", draft={"initialise_from_target": False}),
    Variant("head frozen to the target's rows", {"train_head": False}),
    Variant("loss lk_alpha", {"loss": "lk_alpha"}),
    Variant("loss lk_lambda", {"loss": "lk_lambda"}),
    Variant("K 1", {"ttt_steps": 1}),
    Variant("K 5", {"ttt_steps": 5}),
    Variant("draft vocabulary 2048", vocabulary=2048),
    Variant("draft vocabulary 8192", vocabulary=8192),
    Variant("learning rate 3e-4", {"learning_rate": 3e-4}),
    Variant("learning rate 2e-3", {"learning_rate": 2e-3}),
    Variant("cosine", {"schedule": "cosine"}),
    Variant("EAGLE-3.1: fc_norm, norm_output", draft={"fc_norm": True, "norm_output": True}),
    Variant("norm_before_residual", draft={"norm_before_residual": True}),
]


def main() -> None:
    """Train every variant and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="CPU-seconds of training per variant")
    parser.add_argument("--only", default="", help="variants whose name has this in it")
    options = parser.parse_args()
    run = StoredRun.newest()
    teacher = teacher_parts(run.load_target()[0], torch.device("cpu"))
    sequences = len(SequenceStore(run.states, "heldout"))
    print(f"{options.seconds:.0f} CPU-seconds each, chains of {CHAIN} on {sequences} held-out sequences")
    print("variant                           updates    rows  length  95 % interval  survival by position")
    for variant in VARIANTS:
        if options.only in variant.name:
            print(measure(variant, run, teacher, options.seconds), flush=True)


def measure(variant: Variant, run: StoredRun, teacher: TeacherParts, seconds: float) -> str:
    """The row of one variant."""
    changes = {"ttt_steps": 3, "learning_rate": 1e-3} | variant.training
    seed = changes.pop("seed", SEED)
    spec = TrainingSpec.model_validate(changes)
    shape = DraftSpec.model_validate(variant.draft)
    target_ids = vocabulary_of(run, variant.vocabulary)
    layers = list(run.states[0].facts["aux_layers"])
    scaled = run if not shape.fc_norm else dataclasses.replace(run, initial=with_scale(run.initial, [1.0] * 3))

    def initial() -> Eagle3Draft:
        return make_draft(run.target, TargetSpec(model="stored"), shape, target_ids, layers, SEED)

    store = Seen(SequenceStore(run.states, "train"), variant.sees)
    trained = train_for(seconds, initial, scaled, teacher, spec, store, threads=2, seed=seed)
    objective = Objective("cross_entropy", 0.0, teacher.head[target_ids])
    scale = as_columns(list(scaled.initial.facts["aux_scale"]), trained.draft)
    test = TrainingTimeTest(trained.draft.embedding(teacher.embedding), objective, scale, CHAIN, 1.0)
    with crew_of(2) as crew:
        found = HeldOut(SequenceStore(run.states, "heldout"), teacher.head).survey(trained.draft, test, crew)
    total = found.total()
    low, high = found.interval(2000, SEED)
    survival = " ".join(f"{share:.3f}" for share in total.acceptance)
    return (
        f"{variant.name:32}  {trained.training.steps:7}  {trained.training.clock.rows:6}  {total.length:6.3f}  "
        f"{low:.3f} – {high:.3f}  {survival}"
    )


class Seen:
    """Sequences as a variant sees them."""

    def __init__(self, source: SequenceSource, sees: Callable[[Sequence], Sequence]) -> None:
        self._source, self._sees = source, sees

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> Sequence:
        return self._sees(self._source.read(index))


def with_scale(initial: Shards, scale: list[float]) -> Shards:
    """The artifact with other factors of the auxiliary states."""
    return initial.model_copy(update={"facts": initial.facts | {"aux_scale": scale}})


def vocabulary_of(run: StoredRun, size: int) -> torch.Tensor:
    """A draft vocabulary of this size by the demo's rule, from the training answers, int64 (size,)."""
    store = SequenceStore(run.states, "train")
    answers = [store.read(number) for number in range(len(store))]
    ids = torch.cat([one.token_ids[one.prompt_length :] for one in answers])
    counts = np.bincount(ids.numpy(), minlength=run.target.facts["vocab_size"])
    ends = np.asarray(run.target.facts["eos_ids"])
    table = choose_vocabulary(counts, VocabularySpec(size=size), ends.tolist(), ends)
    return torch.tensor(table["target_id"].to_pylist(), dtype=torch.int64)


if __name__ == "__main__":
    main()
