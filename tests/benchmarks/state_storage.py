"""What smaller states cost in acceptance: `python -m tests.benchmarks.state_storage`.

Takes the newest trained draft's states from the store (EYAS_STORE), and trains the same draft for the same number of
updates from what each way of storing them would give back. All drafts are measured on the held-out states as they are.
"""

import tasks.environment  # noqa: F401 (before torch)

# isort: split
import argparse
from typing import Any

import torch

from schemas.extraction import ExtractionSpec
from schemas.sections import DraftSpec, TargetSpec, TrainingSpec
from tasks.states.layout import bytes_of, state_row, stored_states
from tasks.states.source import Captured, TopTokens
from tasks.train.aux_scale import as_columns
from tasks.train.fused_loss import Objective
from tasks.train.gradient import crew_of
from tasks.train.loader import SequenceStore, sequence_of
from tasks.train.objective import TrainingTimeTest
from tasks.train.sequence import Sequence, TeacherParts
from tasks.train.simulated import HeldOut
from tasks.train.task import make_draft, teacher_parts
from tests.benchmarks.stored_run import SEED, StoredRun, train_steps

CHAIN = 3
VARIANTS: list[dict[str, Any]] = [
    {},
    {"storage": "float8"},
    {"teacher_top_k": 64},
    {"teacher_top_k": 8},
    {"storage": "float8", "teacher_top_k": 64},
    {"prompt_window": 16},
]


class Stored:
    """Training sequences as they come back from another way of storing them."""

    def __init__(self, source: SequenceStore, head: torch.Tensor, spec: ExtractionSpec) -> None:
        self._source, self._head, self._spec = source, head, spec
        self._kept: dict[int, Sequence] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._source)

    def read(self, index: int) -> Sequence:
        if index not in self._kept:
            self._kept[index] = self._stored(self._source.read(index))
        return self._kept[index]

    def _stored(self, whole: Sequence) -> Sequence:
        last: torch.Tensor | None = whole.last
        top = None
        if self._spec.teacher_top_k:
            scores = torch.nn.functional.linear(whole.last.float(), self._head).log_softmax(-1)
            found, last = scores.topk(self._spec.teacher_top_k), None
            top = TopTokens(found.indices.to(torch.int32), found.values)
        row = {
            "sequence_id": whole.name,
            "split": "train",
            "token_ids": whole.token_ids.tolist(),
            "prompt_length": whole.prompt_length,
        }
        hidden = self._head.shape[1]
        self.bytes += bytes_of(len(whole.token_ids), whole.prompt_length, hidden, self._spec)
        back = stored_states(state_row(row, Captured(0, whole.aux, last, top), hidden, self._spec))
        return sequence_of(back, whole.name)


def main() -> None:
    """Train every variant and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="updates of each variant")
    options = parser.parse_args()
    run = StoredRun.newest()
    teacher = teacher_parts(run.load_target()[0], torch.device("cpu"))
    whole = 0
    print(f"{options.steps} updates each, chains of {CHAIN} on {len(SequenceStore(run.states, 'heldout'))} sequences")
    print("storage                                        bytes  length  95 % interval")
    for changes in VARIANTS:
        spec = ExtractionSpec.model_validate(changes)
        store = Stored(SequenceStore(run.states, "train"), teacher.head, spec)
        length, low, high = trained_length(run, teacher, store, options.steps)
        seen = sum(store.read(index).token_ids.numel() > 0 for index in range(len(store)))
        whole = whole or store.bytes
        named = ", ".join(f"{name} {value}" for name, value in changes.items()) or "bfloat16 states, as they are"
        share = store.bytes / whole
        print(f"{named:42} {share:9.3f}  {length:6.3f}  {low:.3f} – {high:.3f}  ({seen} sequences)", flush=True)


def trained_length(run: StoredRun, teacher: TeacherParts, store: Stored, steps: int) -> tuple[float, float, float]:
    """Simulated acceptance length of a draft that was trained from these sequences, and its interval."""
    spec = TrainingSpec(ttt_steps=3, learning_rate=1e-3)
    layers = list(run.states[0].facts["aux_layers"])
    ids = run.target_ids()

    def initial() -> Any:
        return make_draft(run.target, TargetSpec(model="stored"), DraftSpec(), ids, layers, SEED)

    draft = train_steps(steps, initial, run, teacher, spec, store, 2, SEED).draft
    objective = Objective("cross_entropy", 0.0, teacher.head[ids])
    scale = as_columns(list(run.initial.facts["aux_scale"]), draft)
    test = TrainingTimeTest(draft.embedding(teacher.embedding), objective, scale, CHAIN, 1.0)
    with crew_of(2) as crew:
        found = HeldOut(SequenceStore(run.states, "heldout"), teacher.head).survey(draft, test, crew)
    return (found.total().length, *found.interval(2000, SEED))


if __name__ == "__main__":
    main()
