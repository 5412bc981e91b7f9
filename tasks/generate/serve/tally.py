"""Where a dispatch stands, per dataset: for bars, log lines, and the messages of a run that ends early."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tasks.generate.budget import RUN, Budget
from tasks.generate.http.client import Attempt
from tasks.generate.paid import now_ms
from tasks.generate.prices import usd
from tasks.generate.status import Standing
from tasks.progress import Meter, progress

_log = logging.getLogger("eyas.generate")


class Tally:
    """Counts of one dispatch; `prompts` is how many each dataset has."""

    def __init__(self, prompts: Mapping[str, int], budget: Budget, phase: str = "generate") -> None:
        self.prompts, self.phase = dict(prompts), phase
        self.done: Counter[str] = Counter()  # answered or quarantined
        self.asked = 0  # answered in this run
        self.attempts = self.tokens = 0
        self.errors: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._budget = budget
        self._meters: dict[str, Meter] = {}
        self._last = (time.monotonic(), 0, 0, 0)

    @property
    def left(self) -> int:
        """Prompts without an end."""
        return sum(self.prompts.values()) - self.done.total()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar for each dataset while the block runs."""
        with ExitStack() as stack:
            for dataset, count in sorted(self.prompts.items()):
                self._meters[dataset] = stack.enter_context(progress(f"{self.phase} {dataset}", count, "answers"))
            yield

    def finish(self, dataset: str) -> None:
        """Count a prompt that has its end."""
        self.done[dataset] += 1
        if meter := self._meters.get(dataset):
            meter.advance()

    def report(self, attempt: Attempt, dataset: str) -> None:
        """Count an attempt."""
        self.attempts += 1
        self.tokens += attempt.facts.completion_tokens or 0
        if attempt.outcome != "answered":
            self.errors[dataset][attempt.outcome] += 1

    def snapshot(self, ended: str = "") -> Standing:
        """What another process may read of it."""
        totals, cap = self._budget.totals(RUN), self._budget.caps.run
        return Standing(
            self.phase,
            now_ms(),
            ended,
            self.prompts,
            dict(self.done),
            totals.settled_nanousd,
            totals.reserved_nanousd,
            totals.settled_tokens,
            cap.nanousd,
            cap.tokens,
        )

    def standing(self) -> str:
        """What is answered, left and spent, in words."""
        totals = self._budget.totals(RUN)
        cap = self._budget.caps.run
        limits = [usd(cap.nanousd)] if cap.nanousd is not None else []
        limits += [f"{cap.tokens:,} tokens"] if cap.tokens is not None else []
        return (
            f"{self.done.total():,} of {sum(self.prompts.values()):,} prompts are done, {self.left:,} are left; "
            f"spent {usd(totals.settled_nanousd)} and {totals.settled_tokens:,} tokens"
            + (f" of {' and '.join(limits)}" if limits else "")
            + (f"; {totals.kept} attempts may cost up to {usd(totals.kept_nanousd)} more" if totals.kept else "")
        )

    def log(self) -> None:
        """A line on how it goes since the last one."""
        now = time.monotonic()
        since, attempts, tokens, done = self._last
        seconds = max(now - since, 1e-9)
        self._last = (now, self.attempts, self.tokens, self.done.total())
        pace = (self.done.total() - done) / seconds
        errors: Counter[str] = sum(self.errors.values(), Counter())
        _log.info(
            "%.1f requests and %.0f tokens per second, %s to go; %s; failed attempts: %s",
            (self.attempts - attempts) / seconds,
            (self.tokens - tokens) / seconds,
            _minutes(self.left / pace) if pace else "unknown time",
            self.standing(),
            _listed(errors) or "none",
        )


def _minutes(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}:{minutes:02d} h"


def _listed(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
