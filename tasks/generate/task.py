"""The task that generates answers for one shard of prompts. Finished batches are journaled, so none is made twice."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import torch

from schemas.answers import ANSWERS
from schemas.errors import EngineError
from schemas.generation import GenerationSpec
from schemas.prompts import QUARANTINE
from schemas.sections import ComputeSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.keys import canonical
from tasks.artifacts.store import require_space
from tasks.artifacts.task import Workspace, artifact_task, workspace
from tasks.formats.registry import bind
from tasks.generate.embedded import EmbeddedEngine
from tasks.generate.engine import Answer, Engine, Sampling
from tasks.generate.history import canonical_text
from tasks.generate.journal import Journal
from tasks.generate.turns import STEP, Asked, Turns, told_rewritten
from tasks.progress import progress
from tasks.target.decoding import ignore
from tasks.target.model import load_target
from tasks.target.rendering import MarkerFinder, RenderedPrompt, Renderer, cut_batches

JOURNAL = "journal.jsonl"
_BYTES_PER_TOKEN = 16  # id and text in the journal, and the id in the answers

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="3", exclude=("target_spec", "compute"))
def generate_answers(
    target: Shards,
    prompts: Shards,
    spec: GenerationSpec,
    markers_in_prompt: str,
    seed: int,
    target_spec: TargetSpec,
    compute: ComputeSpec,
) -> Shards:
    """Answer one shard of prompts; parts "answers" and "quarantine".

    Args:
        target: the prepared target.
        prompts: part "train"; a shard holds whole conversations.
        spec: the recipe's section.
        markers_in_prompt: "quarantine" or "mirror", for prompts whose text a server reads as a control token.
        seed: of sampling.
        target_spec: where the target's files are.
        compute: what this machine gives.

    Raises:
        EngineError: the engine failed; finished batches are kept.
    """
    torch.set_num_threads(compute.threads_per_worker)
    renderer = Renderer.of(target, target_spec)
    turns = Turns(
        pa.concat_tables(prompts.tables("train")),
        renderer,
        bind(target.facts["token_format"], renderer.codec, target.facts["eos_ids"]),
        spec.max_tokens,
        MarkerFinder(renderer.codec.markers) if markers_in_prompt == "quarantine" else None,
    )
    engine = EmbeddedEngine(load_target(target, target_spec), renderer.codec)
    return answer_shard(turns, engine, spec, seed, workspace())


def answer_shard(turns: Turns, engine: Engine, spec: GenerationSpec, seed: int, space: Workspace) -> Shards:
    """Generate the batches that the journal lacks, then write the answers in the order of the prompts.

    Answers that were cut are made again with the larger limit, if the recipe gives one and the context has the room.
    """
    longest = max(spec.max_tokens, spec.regenerate_tokens)
    require_space(len(turns.rows) * longest * _BYTES_PER_TOKEN, "the journal of answers")
    answers: dict[str, Answer] = {}
    regenerated = 0
    started = time.perf_counter()
    with Journal(space.path(JOURNAL)) as journal, progress(STEP, len(turns.rows), "answers") as bar:
        batches = Batches(engine, journal, spec, seed)
        for level in range(turns.levels):
            lost = len(turns.quarantine)
            prompts = turns.ready(level)
            bar.advance(len(turns.quarantine) - lost)
            made = batches.answers(prompts, spec.max_tokens, bar.advance)
            if spec.regenerate_tokens:
                again = [p for p in prompts if _cut_with_room(made[p.prompt_id], spec, turns.context)]
                made |= batches.answers(again, spec.regenerate_tokens)
                regenerated += len(again)
            turns.settle(list(made.values()))
            answers |= made
    seconds = time.perf_counter() - started
    asked = [turns.asked[row["prompt_id"]] for row in turns.rows if row["prompt_id"] in turns.asked]
    rows = [_row(each, answers[each.prompt.prompt_id], engine) for each in asked]
    space.add_table("answers", "answers.parquet", ANSWERS.table(rows, "answers"), ANSWERS)
    space.add_table("quarantine", "quarantine.parquet", QUARANTINE.table(turns.quarantine, "quarantine"), QUARANTINE)
    facts = {
        "rows_in": len(turns.rows),
        "rows_out": len(rows),
        "quarantined": dict(sorted(Counter(row["reason"] for row in turns.quarantine).items())),
        "completion_tokens": sum(answer.completion_tokens for answer in answers.values()),
        "cut": sum(answer.finish_reason == "length" for answer in answers.values()),
        "regenerated": regenerated,
        **told_rewritten(turns.rewritten),
    }
    measures = {"generate_seconds": seconds, "tokens_per_second": batches.generated / max(seconds, 1e-9)}
    return space.publish(facts, measures)


@dataclass
class Batches:
    """Answers prompts batch by batch, and takes from the journal what is there."""

    engine: Engine
    journal: Journal
    spec: GenerationSpec
    seed: int
    generated: int = 0  # ids that were not in the journal

    def answers(
        self, prompts: Sequence[RenderedPrompt], max_tokens: int, report: Callable[[int], None] = ignore
    ) -> dict[str, Answer]:
        """An answer of at most `max_tokens` ids for each prompt, by its id."""
        sampling = Sampling(max_tokens, self.spec.temperature, self.spec.top_p, self.seed)
        answers: dict[str, Answer] = {}
        for batch in cut_batches(prompts, self.spec.batch_size):
            key = batch_key(self.engine.name, batch, sampling)
            if (stored := self.journal.get(key)) is None:
                made = checked(batch, self.engine.generate(batch, sampling, report), self.engine.name)
                self.journal.append(key, stored := [asdict(answer) for answer in made])
                _log.info("journaled batch %s, %d answers", key[:16], len(made))
                self.generated += sum(answer.completion_tokens for answer in made)
            else:
                report(len(batch))
            answers |= {answer["prompt_id"]: Answer(**answer) for answer in stored}
        return answers


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


def _cut_with_room(answer: Answer, spec: GenerationSpec, context: int) -> bool:
    return answer.finish_reason == "length" and answer.prompt_tokens + spec.regenerate_tokens <= context


def _row(asked: Asked, answer: Answer, engine: Engine) -> dict[str, Any]:
    return {
        "prompt_id": answer.prompt_id,
        "root_id": asked.root_id,
        "dataset": asked.prompt.dataset,
        "request": canonical_text(asked.request),
        "prompt_ids": asked.prompt.ids,
        "output_ids": answer.output_ids,
        "reasoning": None,
        "content": answer.text,
        "tool_calls": None,
        "finish_reason": answer.finish_reason,
        "max_tokens": answer.max_tokens,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "reasoning_tokens": None,
        "engine": engine.name,
        "provider": None,
        "model": engine.model,
        "quantization": None,
        "response_id": None,
    }
