"""What a finished run left in the store (EYAS_STORE), for benchmarks that train on real states and decode with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from schemas.corpus import VOCABULARY
from schemas.sections import BenchmarkSpec, TargetSpec
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

BOOTSTRAP, SEED = 2000, 0


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
