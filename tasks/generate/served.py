"""The task that has servers answer all prompts of a run, and writes what they said; asking is dispatch.py's.

Answers lie in the store under what was asked, so that the result is written by going through the conversations once
more and reading each answer where its request finds it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.answers import ANSWERS
from schemas.generation import GenerationSpec
from schemas.ledger import ACCOUNT, DATASETS, LEDGER
from schemas.prompts import QUARANTINE, quarantine_row
from schemas.sections import TargetSpec
from schemas.serving import ServingSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import store_root
from tasks.artifacts.task import Workspace, artifact_task, workspace
from tasks.formats.format import Fault
from tasks.formats.registry import bind
from tasks.generate.budget import Budget, Caps, caps_of
from tasks.generate.dispatch import Outcome, Partition, Stores, conversations, dispatch
from tasks.generate.ledger import Ledger, read_ledger, total, totals
from tasks.generate.paid import PaidAnswers, open_paid
from tasks.generate.serve.account import account_of, account_table
from tasks.generate.serve.job import Job, Means, endpoints_of, job_of, look_around
from tasks.generate.serve.launching import servers_of
from tasks.generate.serve.reading import Read, read, take
from tasks.generate.serve.reconcile import book_known
from tasks.generate.turns import STEP, Turns, told_rewritten
from tasks.target.rendering import MarkerFinder, Renderer, quarantined

WAIT_SECONDS = 5.0  # for the files of a run that is just ending

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="2", exclude=("target_spec", "run", "approved_nanousd"))
def generate_served(
    target: Shards,
    prompts: Shards,
    spec: GenerationSpec,
    partitions: dict[str, str],
    markers_in_prompt: str,
    seed: int,
    target_spec: TargetSpec,
    run: str,
    approved_nanousd: int | None = None,
) -> Shards:
    """Answer all prompts; parts "answers", "quarantine", "ledger", "datasets" and, where there is one, "account".

    The result is provisional as long as a prompt has no answer: the next run asks for that one again, and no other.

    Args:
        target: the prepared target, for its tokenizer, template and context.
        prompts: part "train"; a shard holds whole conversations.
        spec: the recipe's section.
        partitions: "short" or "long" by dataset.
        markers_in_prompt: "quarantine" or "mirror", for prompts whose text a server reads as a control token.
        seed: of sampling, where servers take one.
        target_spec: where the target's files are.
        run: whose budget and ledger these are: what all runs of that name spent counts together.
        approved_nanousd: a cap for that, beside the recipe's; None is none.

    Raises:
        BudgetExhausted: a cap is reached; answers are kept.
        RunStopped: it was told to stop; answers are kept.
        EngineError: the servers refuse, or answer something that cannot be used; answers are kept.
    """
    with prepared(target, prompts, spec, partitions, markers_in_prompt, seed, target_spec) as (job, parts):
        return answer_all(job, parts, store_root(), run, workspace(), spec, approved_nanousd)


@contextmanager
def prepared(
    target: Shards,
    prompts: Shards,
    spec: GenerationSpec,
    partitions: Mapping[str, str],
    markers_in_prompt: str,
    seed: int,
    target_spec: TargetSpec,
) -> Iterator[tuple[Job, list[Partition]]]:
    """All that is asked, and how, while the servers run; they are asked who they are."""
    table = pa.concat_tables(prompts.tables("train"))
    means = means_of(target, target_spec, markers_in_prompt)
    with servers_of(spec, target, target_spec) as asking:
        serving = asking.serving
        endpoints = endpoints_of(spec.engine, serving)
        survey = asyncio.run(look_around(spec.engine, endpoints, serving))
        asked = spec.model_copy(update={"serving": serving})
        job = job_of(asked, endpoints, survey, replace(means, revision=asking.revision), seed)
        yield replace(job, check=asking.check), partitioned(table, partitions, serving)


@contextmanager
def stores_of(store: Path, job: Job, run: str, caps: Caps) -> Iterator[Stores]:
    """The stores of a run, open for writing."""
    with (
        open_paid(store, job.scope, wait_seconds=WAIT_SECONDS) as paid,
        Budget(store / "budget" / run, caps, wait_seconds=WAIT_SECONDS) as budget,
        Ledger(store / "ledger" / run, wait_seconds=WAIT_SECONDS) as ledger,
    ):
        book_known(ledger, budget)
        yield Stores(paid, budget, ledger)


def means_of(target: Shards, target_spec: TargetSpec, markers_in_prompt: str) -> Means:
    """What prompts are rendered and answers taken apart with."""
    renderer = Renderer.of(target, target_spec)
    return Means(
        renderer,
        bind(target.facts["token_format"], renderer.codec, target.facts["eos_ids"]),
        MarkerFinder(renderer.codec.markers) if markers_in_prompt == "quarantine" else None,
        target.facts["template_sha256"],
        target_spec.revision,
    )


def partitioned(table: pa.Table, partitions: Mapping[str, str], serving: ServingSpec) -> list[Partition]:
    """The conversations by the limits that they run under, largest limits last.

    A conversation is long if one of its turns is of a long dataset.
    """
    table = table.combine_chunks()
    names = table["dataset"]
    bounds: dict[str, list[tuple[int, int]]] = {"short": [], "long": []}
    for start, stop in conversations(table):
        long = any(partitions.get(name) == "long" for name in set(names[start:stop].to_pylist()))
        bounds["long" if long else "short"].append((start, stop))
    return [Partition(serving.short, table, bounds["short"]), Partition(serving.long, table, bounds["long"])]


def answer_all(
    job: Job,
    partitions: Sequence[Partition],
    store: Path,
    run: str,
    space: Workspace,
    spec: GenerationSpec,
    approved_nanousd: int | None = None,
) -> Shards:
    """Ask what is not paid for, then write all answers."""
    started = time.perf_counter()
    with stores_of(store, job, run, caps_of(spec.serving.budget, approved_nanousd)) as stores:
        budget = stores.budget
        outcome = asyncio.run(dispatch(job, partitions, stores))
        stores.ledger.compact()
        written = _Written()
        for number, (shard, limit) in enumerate(_shards(partitions, spec.shard_prompts)):
            _write(job, stores.paid, outcome, job.means.turns(shard, limit), limit, number, written, space)
        stores.paid.compact()
        if budget.overruns:
            _log.warning("%d bills were above their worst case, the first %s", len(budget.overruns), budget.overruns[0])
    entries = read_ledger(store / "ledger" / run)
    if spoken := account_of(store / "ledger" / run, budget.unreconciled()):
        space.add_table("account", "account.parquet", account_table(spoken), ACCOUNT)
    space.add_table("ledger", "ledger.parquet", entries, LEDGER)
    space.add_table("datasets", "datasets.parquet", _datasets(outcome, written, entries), DATASETS)
    seconds = time.perf_counter() - started
    spent = total(entries)
    facts = {
        "rows_in": sum(outcome.tally.prompts.values()),
        "rows_out": written.answered.total(),
        "quarantined": dict(sorted(written.reasons.items())),
        "completion_tokens": written.tokens.total(),
        "cut": written.cut,
        "regenerated": 0,
        **told_rewritten(written.rewritten),
    }
    measures = {
        "generate_seconds": seconds,
        "tokens_per_second": outcome.tally.tokens / max(seconds, 1e-9),
        "spent_usd": spent.cost_nanousd / 1e9,
        "unknown_usd": spent.unknown_nanousd / 1e9,
    }
    if outcome.failures:
        _log.warning("%d prompts have no answer; the next run asks for these again", len(outcome.failures))
    return space.publish(facts, measures, provisional=bool(outcome.failures))


@dataclass
class _Written:
    """Counts of what was written, by dataset."""

    answered: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    reasoned: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    rewritten: list[str] = field(default_factory=list)
    cut: int = 0

    def count(self, answer: Read) -> None:
        dataset = answer.meta.dataset
        self.answered[dataset] += 1
        self.reasoned[dataset] += answer.has_reasoning()
        self.tokens[dataset] += answer.meta.completion_tokens or 0


def _shards(partitions: Sequence[Partition], size: int) -> Iterator[tuple[pa.Table, int]]:
    """Whole conversations, about `size` prompts together, and their limit."""
    for partition in partitions:
        waiting: list[pa.Table] = []
        rows = 0
        for start, stop in partition.bounds:
            if rows and rows + stop - start > size:
                yield pa.concat_tables(waiting), partition.spec.max_tokens
                waiting, rows = [], 0
            waiting.append(partition.table.slice(start, stop - start))
            rows += stop - start
        if waiting:
            yield pa.concat_tables(waiting), partition.spec.max_tokens


def _write(
    job: Job,
    paid: PaidAnswers,
    outcome: Outcome,
    turns: Turns,
    limit: int,
    number: int,
    written: _Written,
    space: Workspace,
) -> None:
    answers: dict[str, dict[str, Any]] = {}
    for level in range(turns.levels):
        prompts = turns.ready(level)
        by_key: defaultdict[str, list[str]] = defaultdict(list)
        for prompt in prompts:
            by_key[job.key(turns.asked[prompt.prompt_id], limit)].append(prompt.prompt_id)
        for found in paid.each(by_key):
            for prompt_id in by_key.pop(found.key):
                asked = turns.asked[prompt_id]
                meta = replace(found.meta, dataset=asked.prompt.dataset)  # another's answer may be its own too
                answer = read(job, asked, meta, found.body, limit)
                take(job, turns, answer)
                if isinstance(answer.said, Fault):
                    reason, detail = answer.said
                    turns.quarantine.append(quarantine_row(STEP, meta.dataset, prompt_id, reason, detail, found.body))
                else:
                    answers[prompt_id] = answer.row(job.engine)
                    written.count(answer)
                    written.cut += answer.said.finish_reason == "length"
        for prompt_id in (one for ids in by_key.values() for one in ids):
            fault = outcome.failures[prompt_id]
            turns.take(prompt_id, fault)
            row = next(row for row in turns.rows if row["prompt_id"] == prompt_id)
            turns.quarantine.append(quarantined(row, STEP, fault))
    rows = [answers[row["prompt_id"]] for row in turns.rows if row["prompt_id"] in answers]
    written.rewritten += turns.rewritten
    written.reasons.update(row["reason"] for row in turns.quarantine)
    written.quarantined.update(row["dataset"] for row in turns.quarantine)
    space.add_table("answers", f"answers-{number:05d}.parquet", ANSWERS.table(rows, "answers"), ANSWERS)
    table = QUARANTINE.table(turns.quarantine, "quarantine")
    if turns.quarantine or not number:  # there is always a file
        space.add_table("quarantine", f"quarantine-{number:05d}.parquet", table, QUARANTINE)


def _datasets(outcome: Outcome, written: _Written, entries: pa.Table) -> pa.Table:
    spent = totals(entries, "dataset")
    errors: defaultdict[str, Counter[str]] = defaultdict(Counter)
    pairs = zip(entries["dataset"].to_pylist(), entries["outcome"].to_pylist(), strict=True)
    for dataset, kind in pairs:
        if kind != "answered":
            errors[dataset][kind] += 1
    rows = []
    for dataset, count in sorted(outcome.tally.prompts.items()):
        answered = written.answered[dataset]
        rows.append(
            {
                "dataset": dataset,
                "prompts": count,
                "answered": answered,
                "quarantined": written.quarantined[dataset],
                "errors": json.dumps(errors[dataset], sort_keys=True),
                "reasoning_share": written.reasoned[dataset] / max(answered, 1),
                "prompt_tokens": spent[dataset].prompt_tokens if dataset in spent else 0,
                "completion_tokens": spent[dataset].completion_tokens if dataset in spent else 0,
                "mean_answer_tokens": written.tokens[dataset] / max(answered, 1),
                "cost_nanousd": spent[dataset].cost_nanousd if dataset in spent else 0,
            }
        )
    return DATASETS.table(rows, "datasets")
