"""Going on from a parent draft: which layers fed it, the proof that it still accepts what it did, and first weights.

A public draft's layer ids can often be read in two ways that differ by one layer. Both are tried on a few sequences,
and the one under which more drafted tokens would be accepted is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from schemas.corpus import VOCABULARY
from schemas.errors import DraftError
from schemas.sections import ComputeSpec, ParentSpec, TargetSpec, TrainingSpec
from schemas.warm_start import READINGS
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.adoption import embedding_sha256
from tasks.draft.checkpoint import load_draft
from tasks.draft.model import Eagle3Draft
from tasks.target.model import load_target
from tasks.train.aux_scale import AUX_STATES, as_columns, measure_aux_scale
from tasks.train.fused_loss import Objective
from tasks.train.gradient import crew_of
from tasks.train.loader import SequenceSource, SequenceStore
from tasks.train.objective import TrainingTimeTest
from tasks.train.online import open_sequences
from tasks.train.sequence import TeacherParts
from tasks.train.simulated import HeldOut, SimulatedAcceptance
from tasks.train.task import common_layers, publish_draft
from tasks.train.teacher import teacher_parts
from tasks.train.top_tokens import draft_lookup

_log = logging.getLogger("eyas.train")

_DRAWS, _HIGH = 2000, 97.5


@dataclass(frozen=True)
class Reached:
    """Simulated acceptance of a draft that was not trained, over sequences."""

    by_sequence: list[SimulatedAcceptance]

    @property
    def total(self) -> SimulatedAcceptance:
        """Of all sequences."""
        survived = [sum(column) for column in zip(*(one.survived for one in self.by_sequence), strict=True)]
        chains = [sum(column) for column in zip(*(one.chains for one in self.by_sequence), strict=True)]
        return SimulatedAcceptance(survived, chains)

    def length(self, drafted: int) -> float:
        """Acceptance length with this many drafted tokens."""
        return 1 + sum(self.total.acceptance[:drafted])

    def high(self, drafted: int, seed: int) -> float:
        """The upper end of the 95 % interval of `length`, by drawing sequences."""
        survived = np.array([one.survived[:drafted] for one in self.by_sequence], float)
        chains = np.array([one.chains[:drafted] for one in self.by_sequence], float)
        draws = np.random.default_rng(seed).integers(0, len(survived), (_DRAWS, len(survived)))
        shares = survived[draws].sum(1) / np.maximum(chains[draws].sum(1), 1)
        return float(np.percentile(1 + shares.sum(1), _HIGH))


@artifact_task(version="1", exclude=("target_spec", "compute"))
def choose_reading(
    target: Shards,
    parent: Shards,
    states: dict[str, Shards],
    spec: TrainingSpec,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """Which layers feed the parent: part "readings" (contract READINGS), facts `reading`, `aux_layers` and `lengths`.

    Args:
        target: the prepared target.
        parent: what `adopt_parent` gave.
        states: by reading, the states of the same sequences at its layers; the likeliest reading first.
        spec: for the number of steps.
        target_spec: where the target is.
        compute: threads.
    """
    teacher = teacher_parts(load_target(target, target_spec), torch.device("cpu"))
    draft = load_draft(parent)
    reached = {
        reading: measure_draft(
            draft, teacher, SequenceStore([found], "train"), spec.ttt_steps, compute.training_threads
        )
        for reading, found in states.items()
    }
    lengths = {reading: one.length(spec.ttt_steps) for reading, one in reached.items()}
    kept = max(lengths, key=lambda reading: lengths[reading])
    layers: Mapping[str, list[int]] = parent.facts["readings"]
    told = ", ".join(f"{reading} {layers[reading]}: {length:.3f}" for reading, length in lengths.items())
    _log.info("simulated acceptance length of the parent by the meaning of its layer ids: %s; %s is kept", told, kept)
    out = workspace()
    rows = [
        {
            "reading": reading,
            "aux_layers": layers[reading],
            "position": position,
            "chains": chains,
            "survived": survived,
            "kept": reading == kept,
        }
        for reading, one in reached.items()
        for position, (chains, survived) in enumerate(zip(one.total.chains, one.total.survived, strict=True))
    ]
    out.add_table("readings", "readings.parquet", READINGS.table(rows), READINGS)
    return out.publish({"reading": kept, "aux_layers": layers[kept], "lengths": lengths})


@artifact_task(version="1", exclude=("target_spec", "compute"))
def initialise_from_parent(
    target: Shards,
    parent: Shards,
    vocabulary: Shards,
    states: list[Shards],
    spec: ParentSpec,
    training: TrainingSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """The parent as the first weights of training: parts "config" and "weights" (float32), as `initialise_draft` gives.

    Raises:
        DraftError: its embeddings are not the target's, or it accepts less than is known of it.
    """
    torch.set_num_threads(compute.threads_per_worker)
    layers = common_layers(states)
    if layers not in parent.facts["readings"].values():
        _log.warning(
            "the parent was fed with layers %s by its config, and is trained on with %s, as extraction.aux_layers says",
            " or ".join(map(str, parent.facts["readings"].values())),
            layers,
        )
    target_ids = torch.tensor(vocabulary.table(VOCABULARY.name)["target_id"].to_pylist(), dtype=torch.int64)
    draft = _at_layers(load_draft(parent), layers, target_ids)
    teacher = teacher_parts(load_target(target, target_spec), torch.device("cpu"))
    expected = parent.facts["embedding_sha256"]
    if expected and embedding_sha256(teacher.embedding) != expected:
        raise DraftError(
            "the parent carries token embeddings that are not the target's, so it was trained for another model, or "
            "for other weights of it: name the parent's own target"
        )
    heldout = open_sequences(states, "heldout", target, target_spec)
    reached = measure_draft(draft, teacher, heldout, training.ttt_steps, compute.training_threads)
    check_reproduced(reached, parent.facts["recorded"], spec, seed)
    scale = (
        [1.0] * AUX_STATES
        if draft.config.fc_norm
        else measure_aux_scale(open_sequences(states, "train", target, target_spec))
    )
    facts = {"aux_scale": scale, "parent": parent.facts["model"], "aux_layers": layers}
    return publish_draft(draft, facts | {"simulated_acceptance": reached.total.acceptance})


def measure_draft(
    draft: Eagle3Draft, teacher: TeacherParts, source: SequenceSource, steps: int, threads: int
) -> Reached:
    """Simulated acceptance of a draft that reads raw states."""
    ids = draft.target_ids()
    scale = as_columns([1.0] * AUX_STATES, draft)
    objective = Objective("cross_entropy", 1.0, teacher.head[ids], lookup=draft_lookup(ids, len(teacher.head)))
    test = TrainingTimeTest(draft.embedding(teacher.embedding), objective, scale, steps, 1.0)
    with crew_of(threads) as crew:
        return Reached(HeldOut(source, teacher.head).by_sequence(draft, test, crew))


def check_reproduced(reached: Reached, recorded: Mapping[str, Any] | None, spec: ParentSpec, seed: int) -> None:
    """Compare what the parent reaches here with what is known of it, and log both.

    Raises:
        DraftError: it falls short by more than the tolerance, even at the upper end of the 95 % interval.
    """
    steps = len(reached.total.acceptance)
    known, drafted = spec.length, min(spec.drafted, steps)
    if not known and recorded and recorded["simulated_acceptance"]:
        drafted = min(len(recorded["simulated_acceptance"]), steps)
        known = 1 + sum(recorded["simulated_acceptance"][:drafted])
    found, high = reached.length(drafted), reached.high(drafted, seed)
    if not known:
        _log.warning(
            "the parent's simulated acceptance length is %.3f with %d drafted tokens; its export records none to "
            "compare with (draft.parent.length can give one)",
            found,
            drafted,
        )
        return
    _log.info("simulated acceptance length of the parent: %.3f here, %.3f is known of it", found, known)
    if high < known * (1 - spec.tolerance):
        raise DraftError(
            f"the parent reaches a simulated acceptance length of {found:.3f} (95 % interval up to {high:.3f}) with "
            f"{drafted} drafted tokens, and {known:.3f} is known of it: states, layers or target are not those that it "
            "was trained with. If its data were of another kind, raise draft.parent.tolerance"
        )


@torch.no_grad()
def _at_layers(parent: Eagle3Draft, layers: list[int], target_ids: torch.Tensor) -> Eagle3Draft:
    """The parent with these layers, and the head's rows of the vocabulary where it had one for all ids."""
    own = parent.target_ids()
    rows = torch.searchsorted(own, target_ids) if len(own) == parent.config.vocab_size else torch.arange(len(own))
    if not torch.equal(own[rows], target_ids):
        raise DraftError("the vocabulary is not the parent's: make it again")
    config = parent.config.model_copy(update={"aux_layers": tuple(layers), "draft_vocab_size": len(target_ids)})
    draft = Eagle3Draft(config)
    weights = parent.state_dict()
    weights["lm_head.weight"] = weights["lm_head.weight"][rows]
    draft.load_state_dict({name: value for name, value in weights.items() if name not in ("d2t", "t2d")}, strict=False)
    draft.set_vocabulary(target_ids)
    return draft
