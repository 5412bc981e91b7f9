"""Asks servers for every turn of every conversation: what is paid for already is taken as it is, the rest asked once.

Conversations run side by side, the turns of one level by level. An answer is on disk before it counts. A run ends early
only in order: nothing new is sent, what is in flight gets its time, and the error says what is answered and left.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.errors import BudgetExhausted, EngineError, EyasError, RunStopped, ServerEnded
from schemas.serving import PartitionSpec
from tasks.formats.format import Fault
from tasks.generate.budget import RUN, Budget
from tasks.generate.http.client import Client, Failure, RawResponse
from tasks.generate.http.providers import quantization_of
from tasks.generate.ledger import Ledger
from tasks.generate.paid import AnswerMeta, PaidAnswers, now_ms
from tasks.generate.serve.account import account_of, read_account, tell_account
from tasks.generate.serve.job import Job
from tasks.generate.serve.reading import NOT_ALLOWED, Read, count_ids, read, take
from tasks.generate.serve.reconcile import reconcile_unknown
from tasks.generate.serve.spending import Purchase, Spending
from tasks.generate.serve.stopping import stoppable
from tasks.generate.serve.tally import Tally
from tasks.generate.status import FINISHED
from tasks.generate.turns import Asked, Turns
from tasks.responses import Response, read_response
from tasks.target.rendering import RenderedPrompt

REFUSED, NO_ANSWER = "request_refused", "no_answer"
_IN_A_ROW = 20  # failures without an answer between them after which there is no use in going on
_TURN = 16  # conversations that are looked at in one turn of the event loop
_LOG_SECONDS = 5.0
_CHECK_SECONDS = 1.0

_log = logging.getLogger("eyas.generate")


@dataclass(frozen=True)
class Partition:
    """Conversations that run under the same limits: `bounds` are their rows in the table (contract PROMPTS)."""

    spec: PartitionSpec
    table: pa.Table
    bounds: Sequence[tuple[int, int]]

    @property
    def rows(self) -> int:
        """Prompts in all."""
        return sum(stop - start for start, stop in self.bounds)

    def datasets(self) -> list[str]:
        """Each prompt's dataset."""
        names = self.table["dataset"]
        return [name for start, stop in self.bounds for name in names[start:stop].to_pylist()]


@dataclass(frozen=True)
class Stores:
    """What outlives the run."""

    paid: PaidAnswers
    budget: Budget
    ledger: Ledger


@dataclass(frozen=True)
class Outcome:
    """What a dispatch that came to its end leaves beside the paid answers: prompts without one, and why."""

    failures: dict[str, Fault]
    tally: Tally


def conversations(table: pa.Table) -> list[tuple[int, int]]:
    """First row and end of each conversation; its rows stand together."""
    roots = table["root_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(roots, prepend=-1)).tolist()
    return list(zip(starts, [*starts[1:], table.num_rows], strict=True))


async def dispatch(job: Job, partitions: Sequence[Partition], stores: Stores, phase: str = "generate") -> Outcome:
    """Have every turn answered, or know why it is not; `phase` is what bars and status call it.

    Raises:
        ServerEnded: a server that was started for this has ended.
        BudgetExhausted: a cap is reached.
        RunStopped: a stop was requested.
        EngineError: the servers refuse, or cannot be reached; what was answered is kept.
        StoreError: an answer could not be kept.
    """
    run = _Dispatch(job, stores, Tally(_prompts_by_dataset(partitions), stores.budget, phase))
    gc.collect()
    gc.freeze()  # prompts and tokenizer: walking them again and again holds up the event loop
    try:
        with run.tally.shown():
            await run.run(partitions)
    finally:
        gc.unfreeze()
    return Outcome(run.failures, run.tally)


class _Abandoned(Exception):
    """A conversation that this run does not finish."""


class _Dispatch:
    def __init__(self, job: Job, stores: Stores, tally: Tally) -> None:
        self.job, self.stores = job, stores
        self.failures: dict[str, Fault] = {}
        self.tally = tally
        self._spending = Spending(
            stores.budget, stores.ledger, job.survey.price, self.tally.report, tells_bills=job.engine == "openrouter"
        )
        self._error: Exception | None = None
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._unlisted = self._in_a_row = 0
        self._looked_at = 0
        self._limit = 0

    async def run(self, partitions: Sequence[Partition]) -> None:
        spending, ledger = self._spending, self.stores.ledger
        async with Client(self.job.endpoints, self.job.spec, spending.report, spending.permit) as client:
            self._client = client
            if metered := self.job.engine == "openrouter":
                await read_account(client, self.job.endpoints, ledger.folder, "before")
            with stoppable() as stop:
                helpers = [asyncio.create_task(one) for one in (self._watch(stop), self._tell(), self._attend())]
                try:
                    for partition in partitions:
                        if partition.bounds and not self._error:
                            await self._partition(partition)
                    if self._background:
                        await asyncio.wait(self._background)
                finally:
                    for helper in helpers:
                        helper.cancel()
            if metered:
                await reconcile_unknown(client, self.stores.ledger, self.stores.budget)
                if await read_account(client, self.job.endpoints, ledger.folder, "after"):
                    tell_account(account_of(ledger.folder, self.stores.budget.unreconciled()))
        self.tally.log()
        if self._background:
            await asyncio.wait(self._background)
        self._write_standing(self._how_it_ended())
        self._raise()

    def _write_standing(self, ended: str = "") -> None:
        try:
            self.tally.snapshot(ended).write(self.stores.ledger.folder)
        except OSError as exc:
            _log.warning("how far the run is cannot be written, so that --status will not tell: %s", exc)

    def _how_it_ended(self) -> str:
        if isinstance(self._error, RunStopped):
            return "stopped"
        return "failed" if self._error else "stopped at a cap" if self._spending.capped else FINISHED

    def _raise(self) -> None:
        if isinstance(self._error, RunStopped):
            if self.tally.left:
                raise RunStopped(f"the run was stopped: {self._kept()}")
        elif self._error:
            raise self._error
        if capped := self._spending.capped:
            whose = "; ".join(str(refusal) for refusal in capped.values())
            raise BudgetExhausted(
                f"the budget is reached: {whose}. {self.tally.standing()}. Raise the cap, or start again "
                "and approve more: answers are kept, nothing is paid for twice"
            )

    async def _partition(self, partition: Partition) -> None:
        self._client.resize(partition.spec.concurrency)
        self._limit = partition.spec.max_tokens
        waiting = iter(partition.bounds)
        async with asyncio.TaskGroup() as group:
            for number in range(min(partition.spec.concurrency, len(partition.bounds))):
                group.create_task(self._work(partition.table, waiting))
                if number % _TURN == 0:
                    await asyncio.sleep(0)

    async def _work(self, table: pa.Table, waiting: Iterator[tuple[int, int]]) -> None:
        for start, stop in waiting:
            await self._turn_of_loop()
            if self._error or RUN in self._spending.capped:
                return
            try:
                with suppress(_Abandoned):
                    await self._converse(self.job.means.turns(table.slice(start, stop - start), self._limit))
            except EyasError as exc:
                self._end(exc)

    async def _turn_of_loop(self) -> None:
        """Wait for the event loop to look at other work, if many conversations are looked at together."""
        while self._looked_at >= _TURN:
            await asyncio.sleep(0)
        if not self._looked_at:
            asyncio.get_running_loop().call_soon(self._end_turn_of_loop)
        self._looked_at += 1

    def _end_turn_of_loop(self) -> None:
        self._looked_at = 0

    async def _converse(self, turns: Turns) -> None:
        for level in range(turns.levels):
            known = len(turns.quarantine)
            prompts = turns.ready(level)
            for row in turns.quarantine[known:]:
                self.tally.finish(row["dataset"])
            if len(prompts) == 1:
                await self._turn(turns, prompts[0])
            else:
                ended = await asyncio.gather(*[self._turn(turns, one) for one in prompts], return_exceptions=True)
                errors = [error for error in ended if error is not None]
                if errors:  # those that say more than that the run ends come first
                    raise min(errors, key=lambda error: isinstance(error, _Abandoned))

    async def _turn(self, turns: Turns, prompt: RenderedPrompt) -> None:
        asked = turns.asked[prompt.prompt_id]
        key = self.job.key(asked, self._limit)
        while key in self._asking:  # another prompt is the same to the server
            await self._asking[key]
        answer: Read | Fault | None = None
        if key not in self.stores.paid:
            self._asking[key] = asyncio.get_running_loop().create_future()
            try:
                answer = await self._ask(key, asked)
            finally:
                self._asking.pop(key).set_result(None)
        elif turns.has_followers(prompt.prompt_id) and (found := self.stores.paid.get(key)):
            answer = read(self.job, asked, found.meta, found.body, self._limit)
        if isinstance(answer, Fault):
            self.failures[prompt.prompt_id] = answer
            turns.take(prompt.prompt_id, answer)
        elif answer is not None:
            take(self.job, turns, answer)
        self.tally.finish(prompt.dataset)

    async def _ask(self, key: str, asked: Asked) -> Read | Fault:
        purchase = Purchase(asked.prompt.dataset, self.job.worst_prompt(asked), self._limit)
        prepared = self.job.prepare(key, asked, self._limit)
        self._spending.open(key, purchase)
        try:
            while not self._error and not self._spending.is_capped(purchase.dataset):
                result = await self._client.ask(prepared)
                if isinstance(result, RawResponse):
                    return await self._keep(result, asked)
                if self._spending.broken:
                    raise self._spending.broken
                if result.kind != "no_budget":
                    return self._failed(result)
                if not self._spending.is_capped(purchase.dataset):
                    await self._spending.room(purchase)
                elif self.job.spec.budget.at_cap == "cancel" and RUN in self._spending.capped:
                    self._client.begin_stop()
                    self._client.cancel()
            raise _Abandoned
        finally:
            self._spending.close(key)

    async def _keep(self, raw: RawResponse, asked: Asked) -> Read:
        """Have an answer on disk, then count it."""
        if raw.facts.completion_tokens is None:
            said = read_response(raw.document)
            ids = count_ids(self.job, said) if isinstance(said, Response) else self._limit
            self._spending.estimate(raw.key, len(asked.prompt.ids), ids)
        facts, attempt_id, cost = self._spending.facts(raw.key)
        meta = AnswerMeta(
            asked.prompt.dataset,
            asked.prompt.prompt_id,
            raw.endpoint,
            self.job.scope.dialect,
            now_ms(),
            attempt_id,
            facts.provider,
            facts.model,
            quantization_of(facts, self.job.survey.offers),
            facts.generation_id,
            facts.prompt_tokens,
            facts.completion_tokens,
            cost,
        )
        await self.stores.paid.append(raw.key, meta, raw.body)
        self._spending.settle(raw.key)
        self.tally.asked += 1
        self._in_a_row = 0
        answer = read(self.job, asked, meta, raw.document, self._limit)
        if isinstance(answer.said, Fault) and answer.said.reason == NOT_ALLOWED:
            self._count_unlisted(answer.said)
        return answer

    def _count_unlisted(self, fault: Fault) -> None:
        self._unlisted += 1
        if self._unlisted > self.job.spec.provider.max_unlisted:
            self._end(
                EngineError(
                    f"{self._unlisted} answers came from others than were asked for, the last because {fault.detail}: "
                    f"correct serving.provider or serving.model, or raise serving.provider.max_unlisted. "
                    f"{self.tally.standing()}"
                )
            )

    def _failed(self, failure: Failure) -> Fault:
        if failure.stops_run:
            self._end(EngineError(f"{self._urls()} refuse the run: {failure.detail}. {self._kept()}"))
            raise _Abandoned
        if failure.kind in ("stopped", "cancelled"):
            raise _Abandoned
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW and (failure.retryable or not self.tally.asked):
            self._end(
                EngineError(
                    f"{self._urls()} answered none of the last {self._in_a_row} requests, the last: {failure.kind}, "
                    f"{failure.detail}. {self._kept()}"
                )
            )
            raise _Abandoned
        reason = NO_ANSWER if failure.retryable else REFUSED
        return Fault(reason, f"{failure.kind} after {failure.attempts} attempts: {failure.detail}")

    def _end(self, error: Exception) -> None:
        """Send nothing any more; what is in flight gets its time."""
        if self._error is None:
            self._error = error
            self._client.begin_stop()
            self._spending.release_all()
            self._in_background(self._client.stop())

    async def _watch(self, stop: asyncio.Event) -> None:
        await stop.wait()
        _log.info("no new request is sent; answers in flight have %.0f seconds", self.job.spec.grace_seconds)
        self._end(RunStopped())

    async def _tell(self) -> None:
        while True:
            self._in_background(asyncio.to_thread(self._write_standing))
            await asyncio.sleep(_LOG_SECONDS)
            self.tally.log()

    async def _attend(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                self.job.check()
            except ServerEnded as exc:
                self._end(ServerEnded(f"{self._kept()}. The reason: {exc}"))
                return

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _urls(self) -> str:
        return ", ".join(f"{one.url}{self.job.dialect.path}" for one in self.job.endpoints)

    def _kept(self) -> str:
        return f"{self.tally.standing()}; answers are kept, start again to go on"


def _prompts_by_dataset(partitions: Sequence[Partition]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for partition in partitions:
        for name in partition.datasets():
            counts[name] = counts.get(name, 0) + 1
    return counts
