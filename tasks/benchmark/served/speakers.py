"""Engines that answer: a server over HTTP with as many requests in flight as a pass says."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace

from schemas.errors import EngineError
from tasks.benchmark.served.client import Client
from tasks.benchmark.served.conversations import Asked
from tasks.benchmark.served.counters import Reading, require_alone
from tasks.benchmark.served.passes import Setting, Take
from tasks.benchmark.served.spoken import Counts, Spoken

_LATE_SECONDS, _POLL_SECONDS = 5.0, 0.05


class ServerSpeaker:
    """A server. Counts come with each response, or are read off its counters around the pass.

    Args:
        client: of the server.
        chain: drafted tokens that can be accepted at once, 0 without a draft.
        always_drafts: whether every verify step has a draft. Prompt lookup often finds none, and engines do not count
            the steps without: they follow from the tokens.
    """

    counted_by = "response"

    def __init__(self, client: Client, chain: int, always_drafts: bool = True) -> None:
        self.client, self.chain, self.always_drafts = client, chain, always_drafts
        self._has_counters = client.dialect.name != "sglang"  # whose responses always say it
        self._where = f"the {client.dialect.name} server at {client.url}"

    def speak(self, asked: Sequence[Asked], setting: Setting, max_tokens: int, take: Take) -> Counts | None:
        """See `Speaker`."""
        before = self._reading()
        spoken = list(self._all(asked, setting, max_tokens, take))
        if not self.chain:
            return None
        if all(one.counts for one in spoken):
            return self._total([one.counts for one in spoken if one.counts])
        if before is None:
            raise EngineError(f"{self._where} says nothing about drafts: it runs without a draft")
        self.counted_by = "counters"
        tokens = sum(len(one.output_ids) for one in spoken)
        return self._with_all_steps(self._required(self._since(before, tokens)), tokens, len(spoken))

    def _all(self, asked: Sequence[Asked], setting: Setting, max_tokens: int, take: Take) -> Iterator[Spoken]:
        def one(turn: Asked) -> Spoken:
            before = self._reading() if setting.concurrency == 1 else None
            spoken = self.client.ask(turn.prompt.ids, setting.temperature, max_tokens, self.chain)
            counts = spoken.counts
            if counts:
                self._has_counters = False  # which need not be read then
            elif before is not None:
                self.counted_by = "counters"
                counts = self._since(before, len(spoken.output_ids))
            return replace(spoken, counts=self._with_all_steps(counts, len(spoken.output_ids)))

        with _pool(setting.concurrency) as pool:
            futures = {pool.submit(one, turn): turn for turn in asked}
            failure: EngineError | None = None
            for future in as_completed(futures):
                try:
                    spoken = future.result()
                except EngineError as exc:
                    failure = failure or exc
                    for other in futures:
                        other.cancel()
                    continue
                except CancelledError:
                    continue
                take(futures[future], spoken)
                yield spoken
            if failure:
                raise failure

    def _reading(self) -> Reading | None:
        return Reading.of(self.client) if self.chain and self._has_counters else None

    def _since(self, before: Reading, tokens: int) -> Counts:
        """What was counted for our own tokens; a server may count a moment after it has answered."""
        deadline = time.monotonic() + _LATE_SECONDS
        after = Reading.of(self.client)
        while after.generated - before.generated < tokens and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            after = Reading.of(self.client)
        require_alone(before, after, tokens, self._where)
        return after.since(before, self.chain)

    def _with_all_steps(self, counts: Counts | None, tokens: int, answers: int = 1) -> Counts | None:
        if counts is None or self.always_drafts:
            return counts
        return replace(counts, verify_steps=max(counts.verify_steps, tokens - answers - counts.accepted))

    def _required(self, counts: Counts) -> Counts:
        if not counts.drafted:
            raise EngineError(f"{self._where} drafted nothing: it runs without a draft, or makes no use of it")
        return counts

    def _total(self, counts: Sequence[Counts]) -> Counts:
        positions = [one.by_position or () for one in counts]
        return Counts(
            sum(one.verify_steps for one in counts),
            sum(one.drafted for one in counts),
            sum(one.accepted for one in counts),
            tuple(sum(column) for column in zip(*positions, strict=True)),
        )


@contextmanager
def _pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="benchmark")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
