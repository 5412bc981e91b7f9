"""What a finished run left in the store (EYAS_STORE), for benchmarks that train on real states and decode with them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from schemas.corpus import VOCABULARY
from schemas.sections import BenchmarkSpec, TargetSpec, TrainingSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.catalog import existing_store, scan
from tasks.artifacts.index import load_verified
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import EagleDrafter
from tasks.benchmark.statistics import Acceptance, acceptance
from tasks.benchmark.task import acceptance_row, settings_of
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target, load_target
from tasks.target.rendering import RenderedPrompt, Renderer, cut_batches, render_shard
from tasks.train.aux_scale import as_columns
from tasks.train.loader import SequenceSource, SequenceStore
from tasks.train.loop import Training
from tasks.train.sequence import Sequence, TeacherParts

BOOTSTRAP, SEED = 2000, 0
CALIBRATION, NEVER = 12, 10**6  # steps


@dataclass(frozen=True)
class StoredRun:
    """The artifacts that a draft was trained and measured with."""

    target: Shards
    initial: Shards
    vocabulary: Shards
    states: list[Shards]
    prompts: Shards

    @classmethod
    def newest(cls) -> StoredRun:
        """Of the store's newest trained draft."""
        catalog = scan(existing_store())
        trained = [entry for entry in catalog.entries.values() if entry.step == "train_draft"]
        prompts = [entry for entry in catalog.entries.values() if entry.step == "gather_prompts"]
        if not trained or not prompts:
            raise SystemExit(
                f"no draft was trained in {catalog.root}: `make demo` trains one, EYAS_STORE names the store"
            )
        origins: dict[str, list[Shards]] = {}
        for origin in catalog.origins(trained[-1]):
            if origin.entry is not None:
                origins.setdefault(origin.parameter.partition("[")[0], []).append(_load(origin.entry.key))
        return cls(
            target=origins["target"][0],
            initial=origins["initial"][0],
            vocabulary=origins["vocabulary"][0],
            states=origins["states"],
            prompts=_load(prompts[-1].key),
        )

    def target_ids(self) -> torch.Tensor:
        """The draft vocabulary, int64 (draft_vocab,)."""
        return torch.tensor(self.vocabulary.table(VOCABULARY.name)["target_id"].to_pylist(), dtype=torch.int64)

    def load_target(self) -> tuple[Target, TargetSpec]:
        """The target's model on the CPU."""
        spec = TargetSpec(model="stored")
        return load_target(self.target, spec), spec

    def held_out_prompts(self, room: int) -> list[RenderedPrompt]:
        """The benchmark prompts, which no draft was trained on."""
        renderer = Renderer.of(self.target, TargetSpec(model="stored"))
        return [
            prompt
            for table in self.prompts.tables("benchmark")
            for prompt in render_shard(table, renderer, room, "benchmark").prompts
        ]


@dataclass(frozen=True)
class Trained:
    """A training run and what it took, evaluation included; its draft reads scaled states."""

    draft: Eagle3Draft
    training: Training
    cpu_seconds: float
    wall_seconds: float


def train_for(
    seconds: float,
    make: Callable[[], Eagle3Draft],
    run: StoredRun,
    teacher: TeacherParts,
    spec: TrainingSpec,
    store: SequenceSource | None = None,
    threads: int = 1,
    seed: int = SEED,
) -> Trained:
    """Train a draft for about so many CPU-seconds: a few steps tell how many fit, then a fresh one is trained.

    Args:
        seconds: CPU-seconds, of all threads.
        make: gives the untrained draft, which reads scaled states.
        run: for the states and their scale.
        teacher: the target's parts.
        spec: the training's; epochs and intervals are set here.
        store: training sequences, where they are not the run's own.
        threads: of training.
        seed: of the order.
    """
    probe = train_steps(CALIBRATION, make, run, teacher, spec, store, threads, seed)
    steps = round(seconds * CALIBRATION / probe.cpu_seconds)
    return train_steps(max(steps, 1), make, run, teacher, spec, store, threads, seed)


def train_steps(
    steps: int,
    make: Callable[[], Eagle3Draft],
    run: StoredRun,
    teacher: TeacherParts,
    spec: TrainingSpec,
    store: SequenceSource | None,
    threads: int,
    seed: int,
) -> Trained:
    """Train a draft for so many updates; arguments as `train_for`."""
    source = SequenceStore(run.states, "train") if store is None else store
    epochs = steps * spec.batch_sequences / len(source) - 1e-9
    planned = spec.model_copy(update={"epochs": epochs, "evaluate_every": NEVER, "checkpoint_every": NEVER})
    draft = make()
    scale = as_columns(list(run.initial.facts["aux_scale"]), draft)
    training = Training(draft, teacher, scale, source, _Nothing(source), planned, seed)
    with tempfile.TemporaryDirectory() as folder:
        before, wall = time.process_time(), time.perf_counter()
        training.run(Path(folder), threads)
        return Trained(draft, training, time.process_time() - before, time.perf_counter() - wall)


class _Nothing:
    """Held-out sequences for a run that is evaluated afterwards: one, and of it as little as there can be."""

    def __init__(self, source: SequenceSource) -> None:
        whole = source.read(0)
        length = whole.prompt_length + 1
        self._one = Sequence(
            whole.token_ids[:length],
            whole.aux[:length],
            whole.last[: length - whole.last_from],
            whole.last_from,
            whole.prompt_length,
        )

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> Sequence:
        return self._one


def measured(target: Target, draft: Eagle3Draft, prompts: list[RenderedPrompt], spec: BenchmarkSpec) -> Acceptance:
    """Greedy acceptance of a draft in the decoding loop of tasks/benchmark, with its interval."""
    draft.eval().requires_grad_(False)
    settings = settings_of("trained", spec, SEED, target.facts)
    rows = [
        acceptance_row(answer, "trained")
        for batch in cut_batches(prompts, spec.batch_size)
        for answer in decode(target, EagleDrafter(draft, target), "trained", batch, settings)
    ]
    return acceptance(rows, None, BOOTSTRAP, SEED)


def _load(key: str) -> Shards:
    return cast(Shards, load_verified(key, "size")[1])
