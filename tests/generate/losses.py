"""Kills a run with SIGKILL in the middle, again and again, restarts it, and counts what was lost or paid for twice."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artifacts.artifact import Shards
from tasks.generate.budget import Budget, Caps
from tasks.generate.durable import Record, scan
from tasks.generate.ledger import Reconciliation, read_ledger, reconcile
from tests.generate.serving import ROOT, Run
from tests.servers.account import MICROS
from tests.servers.fake import FakeServer

_HEAD = struct.Struct("<32sI")  # of a paid answer: key, length of the facts
_POLL_SECONDS = 0.02
_GENERATION_KEY = slice(4, 24)  # of "gen-<key>-<attempt>"


@dataclass
class Losses:
    """What became of a run that was killed."""

    rows: int  # answers in the result
    prompts: int  # different ones among them
    quarantined: int
    journaled: list[int]  # answers on disk after each kill
    asked_again: int  # of these, how many were asked for again
    not_answered: int  # requests that the server never answered
    answered_twice: int  # in flight at a kill: the server had answered, nobody had read it
    read_and_lost: int  # answers in the ledger that were on no disk when the kill came
    spent_usd: float  # by the server's account
    reconciliation: Reconciliation
    overruns: int
    seconds: list[float]  # of each child


def kill_and_restart(run: Run, server: FakeServer, kills: int) -> Losses:
    """Run to the end, with kills spread over it."""
    seconds, journaled = [], []
    known: dict[str, int] = {}  # requests that the server had counted for an answer when it was on disk
    for number in range(kills + 1):
        began = time.monotonic()
        with open(Path(run.store).with_suffix(".log"), "ab") as log:
            child = subprocess.Popen(run.command(), cwd=ROOT, stdout=log, stderr=log)
        if number < kills:
            _kill_at(child, run, (number + 1) / (kills + 1))
            kept = _journaled(run)
            journaled.append(len(kept))
            counted = {key[:20]: tally["requests"] for key, tally in server.summary()["keys"].items()}
            known = {key: counted[key] for key in kept} | known
        elif child.wait():
            raise AssertionError(Path(run.store).with_suffix(".log").read_text()[-4000:])
        seconds.append(time.monotonic() - began)
    return _losses(run, server, known, journaled, seconds)


def _losses(run: Run, server: FakeServer, known: dict[str, int], journaled: list[int], seconds: list[float]) -> Losses:
    summary = server.summary()
    tallies: dict[str, dict[str, Any]] = {key[:20]: tally for key, tally in summary["keys"].items()}
    result = Shards.model_validate_json(Path(run.store, "done.json").read_bytes())
    ids = Counter(row["prompt_id"] for row in run.read(result, "answers"))
    with Budget(Path(run.store) / "budget" / "test", Caps()) as budget:
        in_flight, overruns = budget.unreconciled(), len(budget.overruns)
    spent = summary["billed_micros"] / MICROS
    ledger = read_ledger(Path(run.store) / "ledger" / "test")
    return Losses(
        rows=ids.total(),
        prompts=len(ids),
        quarantined=len(run.read(result, "quarantine")),
        journaled=journaled,
        asked_again=sum(tallies[key]["requests"] != count for key, count in known.items()),
        not_answered=sum(not tally["answered"] for tally in tallies.values()),
        answered_twice=sum(tally["answered"] > 1 for tally in tallies.values()),
        read_and_lost=ledger["outcome"].to_pylist().count("answered") - len(ids),
        spent_usd=spent,
        reconciliation=reconcile(ledger, 0, spent, in_flight),
        overruns=overruns,
        seconds=seconds,
    )


def _kill_at(child: subprocess.Popen[bytes], run: Run, share: float) -> None:
    """Kill when about that share of the answers is on disk."""
    wanted = share * run.questions
    each = 0.0
    while child.poll() is None:
        time.sleep(_POLL_SECONDS)
        size = sum(path.stat().st_size for path in Path(run.store, "paid").glob("*/*.log"))
        if not each and size > 100_000:
            each = size / max(len(_journaled(run)), 1)
        if each and size / each >= wanted:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            return
    raise AssertionError(f"ended before it was killed:\n{Path(run.store).with_suffix('.log').read_text()[-4000:]}")


def _journaled(run: Run) -> list[str]:
    """The server's keys of the answers on disk."""
    found = []
    for path in Path(run.store, "paid").glob("*/*.log"):
        for record in scan(path.read_bytes(), int(path.stem)):
            if isinstance(record, Record):
                _, length = _HEAD.unpack_from(record.payload)
                facts = json.loads(record.payload[_HEAD.size : _HEAD.size + length])
                found.append(facts["generation_id"][_GENERATION_KEY])
    return found
