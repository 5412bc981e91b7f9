"""The tasks of training: the draft's first weights, the trained draft with its curve, its simulated acceptance."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from schemas.corpus import CORPUS, VOCABULARY
from schemas.errors import DraftError
from schemas.measures import SIMULATED, TRAINING_CURVE
from schemas.sections import BenchmarkSpec, ComputeSpec, DraftSpec, TargetSpec, TrainingSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_draft, write_checkpoint
from tasks.draft.model import Eagle3Draft
from tasks.target.model import Target, load_target
from tasks.train.aux_scale import AUX_STATES, fold, measure_aux_scale
from tasks.train.checkpoints import COPIES_ON_DISK
from tasks.train.fused_loss import Objective
from tasks.train.gradient import crew_of
from tasks.train.initialise import draft_config, fresh_draft, narrow_embedding, take_from_target
from tasks.train.objective import TrainingTimeTest
from tasks.train.online import open_sequences
from tasks.train.simulated import HeldOut
from tasks.train.survey import simulated_rows
from tasks.train.teacher import teacher_parts, training_device
from tasks.train.together import Request, train, train_together

_FLOAT_BYTES = 4
_VALUES_PER_WEIGHT = 3  # itself and two moments


@artifact_task(version="1", exclude=("target_spec", "compute"))
def initialise_draft(
    target: Shards,
    vocabulary: Shards,
    states: list[Shards],
    spec: DraftSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """The untrained draft: parts "config" and "weights" (float32, reads raw states); facts: aux_scale, parameters."""
    torch.set_num_threads(compute.threads_per_worker)
    # a norm before fc makes the states equal in size by itself
    scale = (
        [1.0] * AUX_STATES if spec.fc_norm else measure_aux_scale(open_sequences(states, "train", target, target_spec))
    )
    target_ids = torch.tensor(vocabulary.table(VOCABULARY.name)["target_id"].to_pylist(), dtype=torch.int64)
    draft = make_draft(target, target_spec, spec, target_ids, common_layers(states), seed)
    fold(draft, scale)
    return publish_draft(draft, {"aux_scale": scale})


@artifact_task(version="1", exclude=("target_spec", "compute"))
def train_draft(
    target: Shards,
    initial: Shards,
    vocabulary: Shards,
    states: list[Shards],
    spec: TrainingSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """The trained draft: parts "config", "weights" and "curve"; goes on from its last checkpoint after a kill.

    Raises:
        DraftError: the draft's vocabulary is not `vocabulary`, the states are of another target or of other layers,
            or training diverges.
        StoreError: the checkpoints do not fit on the disk.
    """
    draft, scale = load_draft(initial), list(initial.facts["aux_scale"])
    if draft.target_ids().tolist() != vocabulary.table(VOCABULARY.name)["target_id"].to_pylist():
        raise DraftError("the initial draft was made for another vocabulary: make it again")
    weights = sum(parameter.numel() for parameter in draft.parameters())
    per_weight = _VALUES_PER_WEIGHT + (spec.keep == "best")
    require_space(weights * _FLOAT_BYTES * (per_weight * COPIES_ON_DISK + 1), "training, with its checkpoints,")
    if (layers := common_layers(states)) != list(draft.config.aux_layers):
        raise DraftError(f"the hidden states are of layers {layers}, the draft reads {draft.config.aux_layers}")
    request = Request(
        target=target,
        initial=initial,
        states=states,
        spec=spec,
        seed=seed,
        target_spec=target_spec,
        threads=compute.training_threads,
    )
    folder = workspace().ensure_folder()
    if compute.training_processes > 1:
        training = train_together(request, folder, compute.training_processes)
    else:
        training = train(request, folder, training_device(target_spec))
    workspace().add_table(
        "curve", "curve.parquet", TRAINING_CURVE.table([asdict(point) for point in training.curve]), TRAINING_CURVE
    )
    facts = {"aux_scale": scale, "steps": training.done} | ({"keep": spec.keep} if spec.keep == "best" else {})
    return publish_draft(training.draft, facts, training.measures)


@artifact_task(version="1", exclude=("target_spec", "compute"))
def simulate_acceptance(
    target: Shards,
    draft: Shards,
    states: list[Shards],
    corpus: Shards,
    spec: BenchmarkSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """What a trained draft would get on the held-out sequences, as part "simulated": in all, by dataset, by context."""
    trained = load_draft(draft).eval().requires_grad_(False)
    teacher = teacher_parts(load_target(target, target_spec), torch.device("cpu"))
    objective = Objective("cross_entropy", 0.0, teacher.head[trained.target_ids()])
    raw = torch.ones(AUX_STATES * trained.config.target_hidden_size)
    test = TrainingTimeTest(trained.embedding(teacher.embedding), objective, raw, spec.chain, 1.0)
    heldout = HeldOut(open_sequences(states, "heldout", target, target_spec), teacher.head)
    with crew_of(compute.threads_per_worker) as crew:
        chains = heldout.chains(trained, test, crew)
    dataset_of: dict[str, str] = {}
    for table in corpus.tables(CORPUS.name):
        dataset_of |= zip(table["sequence_id"].to_pylist(), table["dataset"].to_pylist(), strict=True)
    rows = simulated_rows(chains, dataset_of, spec.bootstrap, seed)
    space = workspace()
    space.add_table("simulated", "simulated.parquet", SIMULATED.table(rows), SIMULATED)
    return space.publish({"chain": spec.chain})


def make_draft(
    target: Shards, target_spec: TargetSpec, spec: DraftSpec, target_ids: torch.Tensor, layers: list[int], seed: int
) -> Eagle3Draft:
    """An untrained draft that reads scaled states; loads the target where the draft takes anything from it.

    Args:
        target: the prepared target.
        target_spec: where it is.
        spec: the draft's shape and first weights.
        target_ids: the draft vocabulary, int64, ascending.
        layers: the captured layers.
        seed: of the random weights.
    """
    config = draft_config(target.facts, spec, len(target_ids), layers)
    draft = fresh_draft(config, target_ids, seed)
    if spec.initialise_from_target or config.owns_embedding:
        model = load_target(target, target_spec)
        parts = teacher_parts(model, torch.device("cpu"))
        if draft.embed_tokens is not None:
            draft.embed_tokens.weight.data.copy_(narrow_embedding(parts.embedding, config.hidden_size))
        if spec.initialise_from_target:
            take_from_target(draft, model.layers[-1].state_dict(), final_norm(model), parts.head)
    return draft


def common_layers(states: list[Shards]) -> list[int]:
    """The auxiliary layers that all hidden states were captured from.

    Raises:
        DraftError: they differ.
    """
    layers = [list(artifact.facts["aux_layers"]) for artifact in states]
    if any(found != layers[0] for found in layers):
        raise DraftError(f"the hidden states come from different layers {layers}: extract them again")
    return layers[0]


def final_norm(target: Target) -> torch.Tensor:
    """The weight of the target's last norm, (hidden,).

    Raises:
        DraftError: the target has none.
    """
    weight = getattr(getattr(target.decoder, "norm", None), "weight", None)
    if weight is None:
        raise DraftError("the target has no final norm to start from: set draft.initialise_from_target: false")
    return weight.detach()


def publish_draft(draft: Eagle3Draft, facts: dict[str, Any], measures: dict[str, float] | None = None) -> Shards:
    """A draft in float32 as the running task's artifact: parts "config" and "weights"."""
    space = workspace()
    write_checkpoint(space.ensure_folder(), draft, torch.float32)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    parameters = sum(parameter.numel() for parameter in draft.parameters())
    return space.publish(facts | {"parameters": parameters}, measures)
