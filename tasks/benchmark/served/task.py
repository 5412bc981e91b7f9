"""The task that measures one run: one engine, one drafter, every temperature and concurrency of the recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from schemas.benchmarking import EngineSpec, LosslessSpec, MeasureSpec
from schemas.errors import DraftError, EngineError, PromptSourceError
from schemas.lossless import SAMPLES
from schemas.prompts import QUARANTINE
from schemas.sections import ComputeSpec, TargetSpec
from schemas.served import SERVED, SERVED_PASS
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import Workspace, artifact_task, workspace
from tasks.benchmark.drafters import EagleDrafter, NgramDrafter, PlainDrafter
from tasks.benchmark.served.client import Client
from tasks.benchmark.served.conversations import Conversations
from tasks.benchmark.served.dialects import dialect_of
from tasks.benchmark.served.draft import given_folder
from tasks.benchmark.served.identity import require_tokenizer
from tasks.benchmark.served.loop import LoopSpeaker, chains_of, trees_of
from tasks.benchmark.served.passes import Run, Setting, Speaker, run_pass
from tasks.benchmark.served.sampling import sample
from tasks.benchmark.served.servers import Models, Room, server_of
from tasks.benchmark.served.speakers import ServerSpeaker
from tasks.draft.checkpoint import load_draft
from tasks.formats.registry import bind
from tasks.progress import progress
from tasks.target.model import load_target
from tasks.target.place import target_folder
from tasks.target.rendering import Renderer

_NGRAM = 3  # longest suffix that our own prompt lookup matches, as vLLM is told


@artifact_task(version="1", exclude=("target_spec", "compute"))
def measure_run(
    target: Shards,
    draft: Shards | None,
    gguf: Shards | None,
    prompts: Shards,
    run: Run,
    engine: EngineSpec,
    spec: MeasureSpec,
    lossless: LosslessSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """Parts "served" (a row per answer), "passes", "samples" (for the test of distributions) and "quarantine".

    Args:
        target: the prepared target.
        draft: the adopted draft, for drafter "draft".
        gguf: the target as GGUF, for llama.cpp.
        prompts: their part "benchmark".
        run: engine, drafter and setting.
        engine: where the engine is.
        spec: what is measured.
        lossless: how often short prompts are sampled.
        seed: the recipe's.
        target_spec: where the target is.
        compute: threads.

    Raises:
        EngineError: the engine is not there, cannot do this, has another model, or fails; what was answered is kept.
        DraftError: the draft cannot be used.
    """
    space = workspace()
    renderer = Renderer.of(target, target_spec)
    token_format = bind(target.facts["token_format"], renderer.codec, target.facts["eos_ids"])
    table = pa.concat_tables(prompts.tables("benchmark"))
    room = spec.max_tokens + run.chain + 1
    conversations = Conversations(table, _narrowed(renderer, spec), token_format, room)
    settings = [Setting(t, c) for t in spec.temperatures for c in spec.concurrency]
    with (
        _speaker(target, draft, gguf, run, engine, spec, seed, target_spec, compute) as speaker,
        progress(f"benchmark.{run.engine}.{run.drafter}", table.num_rows * len(settings), "answers") as bar,
    ):
        passes = [
            run_pass(run, setting, speaker, conversations, spec.max_tokens, space.ensure_folder(), bar.advance)
            for setting in settings
        ]
        samples = SAMPLES.table([])
        if lossless.samples:
            warm = [temperature for temperature in spec.temperatures if temperature > 0]
            samples = sample(run, warm, speaker, conversations, lossless)
    return _publish(space, run, passes, samples)


def _publish(
    space: Workspace, run: Run, passes: list[tuple[pa.Table, pa.Table, list[dict[str, Any]]]], samples: pa.Table
) -> Shards:
    answers = pa.concat_tables([one[0] for one in passes])
    if not answers.num_rows:
        first = passes[0][2][0]["detail"] if passes[0][2] else "there are none"
        raise PromptSourceError(
            f"no benchmark prompt can be asked ({first}): give shorter ones, lower measure.max_tokens, or raise "
            "measure.context_length"
        )
    space.add_table("served", "served.parquet", answers, SERVED)
    space.add_table("passes", "passes.parquet", pa.concat_tables([one[1] for one in passes]), SERVED_PASS)
    space.add_table("samples", "samples.parquet", samples, SAMPLES)
    lost = {row["source_key"]: row for one in passes for row in one[2]}
    space.add_table("quarantine", "quarantine.parquet", QUARANTINE.table(lost.values(), "quarantine"), QUARANTINE)
    tokens = sum(pa.concat_tables([one[1] for one in passes])["tokens"].to_pylist())
    return space.publish({"run": run.label, "answers": answers.num_rows, "tokens": tokens, "quarantined": len(lost)})


def _narrowed(renderer: Renderer, spec: MeasureSpec) -> Renderer:
    """A server with less room than the target's context gets only what fits."""
    if not spec.context_length:
        return renderer
    return Renderer(renderer.template, renderer.switches, renderer.codec, min(renderer.context, spec.context_length))


@contextmanager
def _speaker(
    target: Shards,
    draft: Shards | None,
    gguf: Shards | None,
    run: Run,
    engine: EngineSpec,
    spec: MeasureSpec,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Iterator[Speaker]:
    """The engine of a run, ready to answer."""
    if run.drafter == "draft" and draft is None:
        raise DraftError(f"{run.label} needs a draft")
    if run.engine == "transformers":
        yield _loop(target, draft, run, seed, target_spec, compute)
        return
    folder = gguf.file("gguf") if gguf else target_folder(target, target_spec)
    models = Models(folder, _draft_file(draft, run))
    context = spec.context_length or target.facts["context"]
    room = Room(context, max(spec.concurrency), target_spec.dtype, compute.training_threads)
    with server_of(engine, run, models, room) as server:
        client = Client(server.url, dialect_of(run.engine), server.model, spec.idle_seconds, max(spec.concurrency))
        try:
            require_tokenizer(client, Renderer.of(target, target_spec).codec)
            yield ServerSpeaker(client, run.chain, always_drafts=run.drafter == "draft")
        except EngineError:
            server.check()  # why it does not answer any more, if it has died
            raise
        finally:
            client.close()


def _draft_file(draft: Shards | None, run: Run) -> Any:
    if draft is None or run.drafter != "draft":
        return None
    return draft.file("gguf") if run.engine == "llamacpp" else given_folder(draft)


def _loop(
    target: Shards, draft: Shards | None, run: Run, seed: int, target_spec: TargetSpec, compute: ComputeSpec
) -> Speaker:
    import torch

    torch.set_num_threads(compute.training_threads)
    model = load_target(target, target_spec)
    ends = target.facts["eos_ids"]
    if run.drafter == "none":
        return LoopSpeaker(chains_of(model, PlainDrafter, "none"), 0, ends, seed)
    if run.drafter == "ngram":
        return LoopSpeaker(chains_of(model, lambda: NgramDrafter(_NGRAM), "ngram"), run.chain, ends, seed)
    if draft is None or run.speculation is None:
        raise DraftError(f"{run.label} needs a draft")
    loaded = load_draft(draft).eval().requires_grad_(False).to(model.device)
    if run.speculation.top_k > 1:
        return LoopSpeaker(trees_of(model, loaded, run.speculation), run.chain, ends, seed)
    return LoopSpeaker(chains_of(model, lambda: EagleDrafter(loaded, model), "trained"), run.chain, ends, seed)
