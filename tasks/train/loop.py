"""The training loop: batches in, updates, checkpoints and a curve out. Knows nothing of tasks and artifacts.

Equal inputs give equal weights and curve, whatever the number of threads and however often the run was killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import DraftError
from schemas.sections import TrainingSpec
from tasks.draft.model import Eagle3Draft
from tasks.progress import progress
from tasks.train.checkpoints import Checkpoint, Checkpoints
from tasks.train.fused_loss import Objective
from tasks.train.gradient import Crew, PartGradient, batch_gradient, crew_of
from tasks.train.loader import BatchPlan, SequenceSource, prefetched
from tasks.train.losses import NEEDS_MASS
from tasks.train.objective import TrainingTimeTest
from tasks.train.optimiser import MOMENTS, Optimiser, learning_rate
from tasks.train.ranks import Ranks
from tasks.train.sequence import Sequence, TeacherParts
from tasks.train.simulated import HeldOut
from tasks.train.top_tokens import draft_lookup

RECORD_EVERY = 10  # optimiser steps per loss in the curve


@dataclass(frozen=True)
class CurvePoint:
    """One row of the training curve, see schemas/measures.py."""

    step: int
    kind: str
    position: int
    value: float


@dataclass
class Clock:
    """Seconds spent per activity, and rows trained, in this process."""

    seconds: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    steps: int = 0

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Add the block's time to an activity."""
        started = time.perf_counter()
        yield
        self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - started

    def summary(self) -> dict[str, float]:
        """Seconds per activity, rates, and shares of the step's time."""
        step = sum(self.seconds.get(name, 0.0) for name in ("load", "gradient", "update", "checkpoint"))
        shares = {f"{name}_share": self.seconds.get(name, 0.0) / step for name in ("load", "gradient") if step}
        seconds = {f"{name}_seconds": value for name, value in self.seconds.items()}
        rate = {"rows_per_second": self.rows / step} if step else {}
        return seconds | shares | rate | {"rows": float(self.rows), "steps": float(self.steps)}


@dataclass
class Window:
    """Sums of the loss since the last point of the curve."""

    sums: list[float]
    counts: list[int]

    @classmethod
    def empty(cls, steps: int) -> Window:
        """Nothing yet."""
        return cls([0.0] * steps, [0] * steps)

    def add(self, parts: list[PartGradient], counts: list[int]) -> None:
        """Add a batch."""
        for sums in (piece for part in parts for piece in part.sums):
            self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]


class Training:
    """One training run of a draft; `run` may go on where a killed process stopped."""

    def __init__(
        self,
        draft: Eagle3Draft,
        teacher: TeacherParts,
        aux_scale: Tensor,
        train: SequenceSource,
        heldout: SequenceSource,
        spec: TrainingSpec,
        seed: int,
    ) -> None:
        """`draft` reads scaled states; it is trained in place.

        Raises:
            DraftError: the states have another width than the draft was made for.
        """
        _check_width(train, draft)
        draft.requires_grad_(True)
        draft.lm_head.requires_grad_(spec.train_head)
        if draft.embed_tokens is not None:
            draft.embed_tokens.requires_grad_(False)
        self._draft, self._spec, self._store = draft, spec, train
        self._device = teacher.embedding.device
        whole = teacher.head if spec.loss in NEEDS_MASS else None
        ids = draft.target_ids()
        lookup = draft_lookup(ids, len(teacher.head))
        objective = Objective(spec.loss, spec.lk_decay, teacher.head[ids], whole, lookup)
        embedding = draft.embedding(teacher.embedding).detach()
        bfloat16 = spec.precision == "bfloat16" or (spec.precision == "auto" and self._device.type != "cpu")
        self._test = TrainingTimeTest(embedding, objective, aux_scale, spec.ttt_steps, spec.step_decay, bfloat16)
        self._heldout = HeldOut(heldout, teacher.head)
        self._ranks = Ranks.current()
        self._plan = BatchPlan(len(train), spec.batch_sequences, spec.epochs, seed)
        self._named = [(name, p) for name, p in draft.named_parameters() if p.requires_grad]
        self._parameters = [parameter for _, parameter in self._named]
        self.curve: list[CurvePoint] = []
        self.clock = Clock()
        self._best: dict[str, Tensor] = {}  # weights of the best evaluation, where the best are kept
        self._done = 0

    @property
    def steps(self) -> int:
        """Optimiser steps in all, unless the run stops early."""
        return self._plan.steps

    @property
    def done(self) -> int:
        """Optimiser steps that were made."""
        return self._done

    def run(self, folder: Path, threads: int) -> None:
        """Train to the end, or until patience is at its end.

        Args:
            folder: where the checkpoints are.
            threads: parts of a batch that are computed at the same time.

        Raises:
            DraftError: the loss is not finite.
        """
        checkpoints = Checkpoints(folder)
        try:
            with crew_of(threads) as crew, progress("train", self.steps, "steps") as meter:
                optimiser = Optimiser(self._parameters, self._spec, crew)
                window = Window.empty(self._spec.ttt_steps)
                self._done = self._resume(checkpoints.newest(), optimiser, window)
                self._ranks.wait()  # all have read before the first one writes
                meter.advance(self._done)
                if not self._done:
                    self._evaluate(0, crew)
                with prefetched(self._store, self._plan, self._done, self._ranks.share) as batches:
                    while self._done < self.steps and not self._exhausted():
                        self._step(self._done, batches, optimiser, window, crew)
                        self._done += 1
                        self._after_step(checkpoints, optimiser, window, crew)
                        meter.advance(1)
                checkpoints.wait()
            self._keep()
        finally:
            checkpoints.close()

    def _after_step(self, checkpoints: Checkpoints, optimiser: Optimiser, window: Window, crew: Crew) -> None:
        done = self._done
        if done % self._spec.evaluate_every == 0 or done == self.steps:
            self._evaluate(done, crew)
        if self._ranks.is_first and done % self._spec.checkpoint_every == 0 and done < self.steps:
            with self.clock.measure("checkpoint"):
                checkpoints.save(self._checkpoint(done, optimiser, window))

    def _exhausted(self) -> bool:
        """Whether the last `patience` evaluations have brought nothing better."""
        lengths = [point.value for point in self.curve if point.kind == "simulated_length"]
        patience = self._spec.patience
        return bool(patience) and len(lengths) > patience and max(lengths[-patience:]) <= max(lengths[:-patience])

    @torch.no_grad()
    def _keep(self) -> None:
        """Put the weights in place that come out."""
        for name, parameter in self._named:
            if name in self._best:
                parameter.copy_(self._best[name])

    def _step(self, step: int, batches: Iterator[list[Any]], optimiser: Optimiser, window: Window, crew: Crew) -> None:
        with self.clock.measure("load"):
            batch = [sequence.to(self._device) for sequence in next(batches)]
        with self.clock.measure("gradient"):
            counts = self._ranks.total(self._test.counts(batch), self._device)
            own = batch_gradient(
                self._draft, self._test, batch, self._parameters, crew, self._spec.micro_sequences, counts
            )
            parts = self._ranks.add_up(own, self._parameters, self._spec.ttt_steps)
        rate = learning_rate(step, self.steps, self._spec)
        with self.clock.measure("update"):
            norm = optimiser.step(parts, rate)
        if not math.isfinite(norm):
            raise DraftError(self._blame(step, batch))
        window.add(parts, counts)
        self.clock.rows += counts[0]
        self.clock.steps += 1
        if (step + 1) % RECORD_EVERY == 0 or step + 1 == self.steps:
            self._record(step + 1, rate, window)

    def _blame(self, step: int, batch: list[Sequence]) -> str:
        """What to say of a gradient that is not finite, with the sequences that made it so."""
        broken = [f"{one.name}: {bad}" for one in batch if (bad := one.not_finite())]
        if broken:
            return f"step {step} met states that are not finite, of sequence {'; '.join(broken)}: extract them again"
        with torch.no_grad():
            counts = self._test.counts(batch)
            guilty = [
                one.name for one in batch if not self._test.losses(self._draft, [one], counts).sums.isfinite().all()
            ]
        named = f", nor is the loss of sequence {', '.join(guilty)}" if guilty else ""
        return (
            f"the gradient of step {step} is not finite{named}; their states are: lower training.learning_rate, "
            f"now {self._spec.learning_rate}"
        )

    def _record(self, done: int, rate: float, window: Window) -> None:
        for position, (total, count) in enumerate(zip(window.sums, window.counts, strict=True)):
            if count:
                self.curve.append(CurvePoint(done, "loss", position, total / count))
        self.curve.append(CurvePoint(done, "learning_rate", 0, rate))
        empty = Window.empty(self._spec.ttt_steps)
        window.sums, window.counts = empty.sums, empty.counts

    def _evaluate(self, done: int, crew: Crew) -> None:
        with self.clock.measure("evaluate"):
            simulated = self._heldout.measure(self._draft, self._test, crew)
        lengths = [point.value for point in self.curve if point.kind == "simulated_length"]
        if self._spec.keep == "best" and simulated.length > max(lengths, default=0.0):
            self._best = {name: parameter.detach().clone() for name, parameter in self._named}
        for position, share in enumerate(simulated.acceptance):
            self.curve.append(CurvePoint(done, "simulated_acceptance", position, share))
        self.curve.append(CurvePoint(done, "simulated_length", 0, simulated.length))

    def _checkpoint(self, done: int, optimiser: Optimiser, window: Window) -> Checkpoint:
        tensors = {}
        for index, (name, parameter) in enumerate(self._named):
            tensors[f"weight.{name}"] = parameter.detach().to("cpu", copy=True)
            for moment, value in optimiser.state(index).items():
                tensors[f"{moment}.{name}"] = value.cpu()
        tensors |= {f"best.{name}": weight.cpu() for name, weight in self._best.items()}
        curve = [[point.step, point.kind, point.position, point.value] for point in self.curve]
        return Checkpoint(done, tensors, {"curve": curve, "sums": window.sums, "counts": window.counts})

    @torch.no_grad()
    def _resume(self, checkpoint: Checkpoint | None, optimiser: Optimiser, window: Window) -> int:
        """Put a checkpoint back; returns the steps done, 0 without one."""
        if checkpoint is None:
            return 0
        for index, (name, parameter) in enumerate(self._named):
            parameter.copy_(checkpoint.tensors[f"weight.{name}"])
            moments = {m: checkpoint.tensors[f"{m}.{name}"].to(parameter.device) for m in MOMENTS}
            optimiser.restore(index, moments, checkpoint.step)
        best = {n.removeprefix("best."): t for n, t in checkpoint.tensors.items() if n.startswith("best.")}
        self._best = {name: tensor.to(self._device) for name, tensor in best.items()}
        self.curve = [CurvePoint(*row) for row in checkpoint.notes["curve"]]
        window.sums, window.counts = checkpoint.notes["sums"], checkpoint.notes["counts"]
        return checkpoint.step


def _check_width(source: SequenceSource, draft: Eagle3Draft) -> None:
    found, right = source.read(0).last.shape[1], draft.config.target_hidden_size
    if found != right:
        raise DraftError(
            f"the hidden states are {found} wide, those of the draft's target {right}: they are of another target"
        )
