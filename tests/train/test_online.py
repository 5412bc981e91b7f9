"""Online, training sees what stored states would have been, and asks for a batch at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from schemas.corpus import CORPUS
from schemas.errors import DraftError
from schemas.extraction import ExtractionSpec
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.extract.task import extract_states, planned_states
from tasks.target.model import Target
from tasks.train.loader import BatchPlan, prefetched
from tasks.train.online import open_sequences
from tests.rows import run_body, stored


def corpus_table(count: int) -> pa.Table:
    generator = torch.Generator().manual_seed(1)
    return CORPUS.table(
        {
            "sequence_id": f"{number:032x}",
            "dataset": "chat",
            "split": "heldout" if number % 4 == 3 else "train",
            "token_ids": torch.randint(0, 49152, (9 + 3 * number,), generator=generator).tolist(),
            "prompt_length": 4 + number,
        }
        for number in range(count)
    )


@pytest.mark.parametrize("changes", [{}, {"storage": "float8"}, {"teacher_top_k": 5}, {"prompt_window": 3}])
def test_sequences_are_those_that_would_have_been_stored(
    changes: dict[str, Any], store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    spec = ExtractionSpec.model_validate({"batch_tokens": 1} | changes)  # every sequence alone, as they are read
    given = stored("build_corpus", "corpus", CORPUS, [corpus_table(4), corpus_table(5)])
    states = [
        run_body(extract_states, tiny_artifact, shard, spec, tiny_spec, ComputeSpec(), name=shard.label)
        for shard in given.split("corpus")
    ]
    planned = planned_states(tiny_artifact, given, spec)
    assert [found.facts["aux_layers"] for found in planned] == [found.facts["aux_layers"] for found in states]
    for split, count in (("train", 7), ("heldout", 2)):
        kept = open_sequences(states, split, tiny_artifact, tiny_spec)
        online = open_sequences(planned, split, tiny_artifact, tiny_spec)
        assert len(kept) == len(online) == count
        for index in range(count):
            wanted, found = kept.read(index), online.read(index)
            assert (found.name, found.last_from, found.prompt_length) == (
                wanted.name,
                wanted.last_from,
                wanted.prompt_length,
            )
            for name in ("token_ids", "aux", "last"):
                assert torch.equal(getattr(found, name), getattr(wanted, name))
            if wanted.top:
                assert found.top
                assert torch.equal(found.top.ids, wanted.top.ids)
                assert torch.equal(found.top.log_probabilities, wanted.top.log_probabilities)


def test_a_batch_is_one_forward_pass(
    store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec, tiny_loaded: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = stored("build_corpus", "corpus", CORPUS, [corpus_table(8)])
    online = open_sequences(planned_states(tiny_artifact, given, ExtractionSpec()), "train", tiny_artifact, tiny_spec)
    passes: list[int] = []
    capture = tiny_loaded.capture

    def counted(ids: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        passes.append(len(ids))
        return capture(ids, **options)

    monkeypatch.setattr(tiny_loaded, "capture", counted)
    plan = BatchPlan(len(online), 3, 1, 0)
    with prefetched(online, plan, 0) as batches:
        names = [[sequence.name for sequence in batch] for batch in batches]
    assert passes == [3, 3]
    assert names == [[online.read(index).name for index in plan.batch(step)] for step in range(plan.steps)]


def test_a_missing_split_is_an_error(store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec) -> None:
    given = stored("build_corpus", "corpus", CORPUS, [corpus_table(2)])
    with pytest.raises(DraftError, match="heldout"):
        open_sequences(planned_states(tiny_artifact, given, ExtractionSpec()), "heldout", tiny_artifact, tiny_spec)
