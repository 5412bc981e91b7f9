"""The task that generates answers for one shard of prompts. Finished batches are journaled, so none is made twice."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import torch

from schemas.answers import ANSWERS
from schemas.errors import EngineError
from schemas.prompts import QUARANTINE
from schemas.sections import ComputeSpec, GenerationSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.keys import canonical
from tasks.artifacts.store import require_space
from tasks.artifacts.task import Workspace, artifact_task, workspace
from tasks.generate.embedded import EmbeddedEngine
from tasks.generate.engine import Answer, Engine, Sampling
from tasks.generate.journal import Journal
from tasks.progress import progress
from tasks.target.model import load_target
from tasks.target.rendering import RenderedPrompt, RenderedShard, cut_batches, render_shard
from tasks.target.text import load_tokenizer

STEP = "generate"
JOURNAL = "journal.jsonl"
_BYTES_PER_TOKEN = 16  # id and text in the journal, and the id in the answers

_log = logging.getLogger("eyas.generate")


@artifact_task(version="1", exclude=("target_spec", "compute"))
def generate_answers(
    target: Shards, prompts: Shards, spec: GenerationSpec, seed: int, target_spec: TargetSpec, compute: ComputeSpec
) -> Shards:
    """Answer one shard of prompts; parts "answers" and "quarantine".

    Raises:
        EngineError: the engine failed; finished batches are kept.
    """
    torch.set_num_threads(compute.threads_per_worker)
    engine = EmbeddedEngine(load_target(target, target_spec))
    tokenizer = load_tokenizer(target, target_spec)
    table = pa.concat_tables(prompts.tables("train"))
    prepared = render_shard(table, tokenizer, target.facts, spec.max_tokens, STEP)
    return answer_shard(prepared, engine, spec, seed, workspace())


def answer_shard(shard: RenderedShard, engine: Engine, spec: GenerationSpec, seed: int, space: Workspace) -> Shards:
    """Generate the batches that the journal lacks, then write the answers in the order of the prompts."""
    require_space(len(shard.prompts) * spec.max_tokens * _BYTES_PER_TOKEN, "the journal of answers")
    sampling = Sampling(spec.max_tokens, spec.temperature, spec.top_p, seed)
    answers: dict[str, Answer] = {}
    started, generated = time.perf_counter(), 0
    with Journal(space.path(JOURNAL)) as journal, progress("generate", len(shard.prompts), "answers") as bar:
        for batch in cut_batches(shard.prompts, spec.batch_size):
            key = batch_key(engine.name, batch, sampling)
            if (stored := journal.get(key)) is None:
                made = checked(batch, engine.generate(batch, sampling, bar.advance), engine.name)
                journal.append(key, stored := [asdict(answer) for answer in made])
                _log.info("journaled batch %s, %d answers", key[:16], len(made))
                generated += sum(answer.completion_tokens for answer in made)
            else:
                bar.advance(len(batch))
            answers |= {answer["prompt_id"]: Answer(**answer) for answer in stored}
    seconds = time.perf_counter() - started
    rows = [_row(prompt, answers[prompt.prompt_id], engine.name) for prompt in shard.prompts]
    space.add_table("answers", "answers.parquet", ANSWERS.table(rows, "answers"), ANSWERS)
    space.add_table("quarantine", "quarantine.parquet", QUARANTINE.table(shard.quarantine, "quarantine"), QUARANTINE)
    tokens = sum(answer.completion_tokens for answer in answers.values())
    facts = {
        "rows_in": len(rows) + len(shard.quarantine),
        "rows_out": len(rows),
        "quarantined": dict(sorted(Counter(row["reason"] for row in shard.quarantine).items())),
        "completion_tokens": tokens,
    }
    return space.publish(facts, {"generate_seconds": seconds, "tokens_per_second": generated / max(seconds, 1e-9)})


def batch_key(engine: str, batch: Sequence[RenderedPrompt], sampling: Sampling) -> str:
    """Names a batch by everything that its answers depend on, the target apart (the workspace belongs to one)."""
    content = [engine, asdict(sampling), [[prompt.prompt_id, prompt.ids] for prompt in batch]]
    return hashlib.sha256(canonical(content)).hexdigest()


def checked(batch: Sequence[RenderedPrompt], answers: Sequence[Answer], engine: str) -> Sequence[Answer]:
    """The answers, if there is exactly one for each request, in order.

    Raises:
        EngineError: an answer is missing, added, or out of order.
    """
    if [answer.prompt_id for answer in answers] != [prompt.prompt_id for prompt in batch]:
        raise EngineError(f"engine {engine} gave {len(answers)} answers that are not those of the {len(batch)} prompts")
    return answers


def _row(prompt: RenderedPrompt, answer: Answer, engine: str) -> dict[str, Any]:
    return asdict(answer) | {"dataset": prompt.dataset, "prompt_ids": prompt.ids, "engine": engine}
