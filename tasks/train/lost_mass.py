"""What a draft vocabulary costs: the probability that the target gives to tokens that the draft can never propose."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from schemas.corpus import LOST_MASS, VOCABULARY
from schemas.errors import ArtifactInvalid
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.task import artifact_task
from tasks.draft.linear import product
from tasks.target.model import load_target
from tasks.train.online import open_sequences
from tasks.train.teacher import teacher_parts
from tasks.train.top_tokens import TopRows

_BLOCK_SCORES = 2**23


@artifact_task(version="1", exclude=("target_spec", "compute"))
def measure_lost_mass(
    target: Shards,
    vocabulary: Shards,
    corpus: Shards,
    states: list[Shards],
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Rows:
    """Per dataset, over held-out completions: a table of LOST_MASS.

    Args:
        target: the prepared target.
        vocabulary: part `vocabulary`.
        corpus: part `corpus`, for the datasets of its held-out sequences.
        states: hidden states of the corpus, with the target's last states.
        target_spec: where the target is.
        compute: threads.

    Raises:
        ArtifactInvalid: the states are not those of the corpus.
    """
    torch.set_num_threads(compute.threads_per_worker)
    head = teacher_parts(load_target(target, target_spec), torch.device("cpu")).head
    ids = torch.tensor(vocabulary.table(VOCABULARY.name)["target_id"].to_pylist(), dtype=torch.int64)
    dataset_of = {
        row["sequence_id"]: row["dataset"]
        for table in corpus.tables("corpus")
        for row in table.select(["sequence_id", "dataset"]).to_pylist()
    }
    store = open_sequences(states, "heldout", target, target_spec)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for index in range(len(store)):
        sequence = store.read(index)
        if (dataset := dataset_of.get(sequence.name)) is None:
            raise ArtifactInvalid(f"the corpus has no sequence {sequence.name}, whose states are given: extract again")
        if sequence.served:
            lost, outside = outside_mass(sequence.teacher(head.dtype), head, ids)
            added = (len(lost), float(lost.sum(dtype=torch.float64)), int(outside.sum()))
            sums[dataset] = [a + b for a, b in zip(sums[dataset], added, strict=True)]
    rows = [
        {"dataset": dataset, "positions": int(count), "lost_mass": lost / count, "best_outside": int(outside)}
        for dataset, (count, lost, outside) in sorted(sums.items())
    ]
    return Rows(contract=LOST_MASS.name, table=LOST_MASS.table(rows, "lost mass"))


@torch.no_grad()
def outside_mass(states: Tensor | TopRows, head: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each state the probability of the tokens that are not in `ids`, and whether the likeliest is one of them.

    Args:
        states: (rows, hidden), after the final norm, or the likeliest tokens.
        head: (vocab, hidden).
        ids: int64 (draft_vocab,).

    Returns:
        float (rows,) and bool (rows,).
    """
    inside = torch.zeros(len(head), dtype=torch.bool, device=head.device)
    inside[ids] = True
    if isinstance(states, TopRows):
        return states.mass_outside(inside), ~inside[states.best]
    lost, outside = [], []
    for block in states.split(max(_BLOCK_SCORES // len(head), 1)):
        scores = product(block, head)
        lost.append(torch.softmax(scores, -1)[:, ~inside].sum(-1))
        outside.append(~inside[scores.argmax(-1)])
    return torch.cat(lost), torch.cat(outside)
