"""A process that forks children which kill themselves (SIGKILL) before, amid or after their n-th call to the disk.

    python -m tests.generate.crashing

Reads lines `scenario folder step moment` and answers each with the child's exit status, -9 for a kill. What a child
was told to be safe, it has written to `<folder>.told` right away.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.ledger import LEDGER, PAID_ANSWERS
from tasks.generate.budget import Budget, Cap, Caps, Refusal
from tasks.generate.ledger import Entry, Ledger
from tasks.generate.paid import AnswerMeta, PaidAnswers
from tasks.generate.prices import Price

ANSWERS = 12
SEGMENT_BYTES = 2_000
CAP = 10_000
PRICE = Price(completion=Price().prompt + 1)
META = AnswerMeta("chat", "0" * 32, "http://127.0.0.1:1", "openai-chat", 1)


def key(number: int) -> str:
    """The key of an answer."""
    return f"{number:032x}" + "0" * 32


def body(number: int) -> bytes:
    """Its body."""
    return b'{"answer":%d}' % number * 20


def entry(number: int) -> Entry:
    """An entry of the ledger."""
    return Entry(f"a{number}", key(number), "chat", "http://127.0.0.1:1", "answered", "yes", 9, number, 1, 1)


def append_and_compact(folder: Path, tell: Callable[[Any], None]) -> None:
    """Add the answers that are not there, moving them into Parquet now and then."""
    with PaidAnswers(folder, segment_bytes=SEGMENT_BYTES) as paid:
        for number in range(ANSWERS):
            if key(number) not in paid:
                paid.append_now(key(number), META, body(number))
                tell(number)
            if number % 5 == 4:
                paid.compact()
        paid.compact()


def spend(folder: Path, tell: Callable[[Any], None]) -> None:
    """Reserve, then settle, keep or release, until the cap is reached."""
    with Budget(folder, Caps(Cap(tokens=CAP))) as budget:
        for number in range(ANSWERS):
            reservation = budget.reserve("chat", 100, 900, PRICE)
            if isinstance(reservation, Refusal):
                return
            tell(["reserved", reservation.id])
            if number % 4 == 0:
                budget.keep(reservation)
            elif number % 4 == 1:
                budget.release(reservation)
                tell(["settled", reservation.id, 0])
            elif number % 4 == 2:
                budget.settle(reservation, 300, 5)
                tell(["settled", reservation.id, 300])


def record_and_compact(folder: Path, tell: Callable[[Any], None]) -> None:
    """Add entries, moving them into Parquet now and then."""
    with Ledger(folder, segment_bytes=SEGMENT_BYTES) as ledger:
        for number in range(ANSWERS):
            ledger.record(entry(number))
            tell(number)
            if number % 5 == 4:
                ledger.compact()
        ledger.compact()


SCENARIOS = {"paid": append_and_compact, "budget": spend, "ledger": record_and_compact}


def kill_at(step: int, moment: str) -> None:
    """Arrange for the death of this process."""
    count, lock = 0, threading.Lock()

    def deadly(name: str) -> Callable[..., Any]:
        plain = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            with lock:
                count += 1
                due = count == step
            if due and moment == "amid" and name == "write":
                plain(args[0], bytes(args[1])[: len(args[1]) // 2])
            if due and moment != "after":
                os.kill(os.getpid(), signal.SIGKILL)
            result = plain(*args, **kwargs)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in ("write", "fsync", "replace", "ftruncate", "unlink"):
        setattr(os, name, deadly(name))


def run(scenario: str, folder: Path, step: int, moment: str) -> None:
    """What a child does."""
    write, told = os.write, os.open(f"{folder}.told", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if step:
        kill_at(step, moment)
    SCENARIOS[scenario](folder, lambda fact: (write(told, json.dumps(fact).encode() + b"\n"), None)[1])


def main() -> None:
    """Serve requests until the input ends."""
    for contract in (PAID_ANSWERS, LEDGER):
        contract.table([])  # what a first check imports, children need not
    for line in sys.stdin:
        scenario, folder, step, moment = line.split()
        if not (child := os.fork()):
            status = 1
            try:
                run(scenario, Path(folder), int(step), moment)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
