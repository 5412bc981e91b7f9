"""Where training gets its sequences: from stored states, or, where nothing is stored, from a source that is asked."""

from __future__ import annotations

from collections.abc import Sequence as Many

from schemas.errors import DraftError
from schemas.extraction import ExtractionSpec
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.states.online import OnlineStates
from tasks.states.opening import open_source
from tasks.train.loader import SequenceSource, SequenceStore, sequence_of
from tasks.train.sequence import Sequence

ONLINE = "online"  # the fact that an artifact holds sequences whose states are asked for


def open_sequences(states: list[Shards], split: str, target: Shards, target_spec: TargetSpec) -> SequenceSource:
    """The sequences of a split, from stored states or online.

    Args:
        states: artifacts of hidden states, or what `planned_states` made of the corpus.

    Raises:
        ArtifactInvalid: a shard is missing, altered, or of another kind.
        DraftError: there is no sequence of this split.
        EngineError: the server of states does not answer.
    """
    if not all(ONLINE in artifact.facts for artifact in states):
        return SequenceStore(states, split)
    spec = ExtractionSpec.model_validate(states[0].facts[ONLINE])
    tables = [table for artifact in states for table in artifact.tables("corpus")]
    found = OnlineStates(open_source(target, target_spec, spec), tables, split, target.facts["hidden_size"], spec)
    if not len(found):
        raise DraftError(f"the corpus holds no sequence of the split {split!r}: nothing to do with it")
    return OnlineSequences(found)


class OnlineSequences:
    """Sequences whose states are computed when they are read."""

    def __init__(self, states: OnlineStates) -> None:
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def read(self, index: int) -> Sequence:
        """See SequenceSource."""
        return self.read_batch([index])[0]

    def read_batch(self, indices: Many[int]) -> list[Sequence]:
        """See BatchSource. What is asked for together is computed together."""
        found = self._states.read(indices)
        return [sequence_of(states, self._states.name(i)) for states, i in zip(found, indices, strict=True)]
