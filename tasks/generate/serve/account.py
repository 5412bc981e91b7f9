"""What the provider's own account says was spent: read before and after a run asks, and held against the ledger.

Readings lie beside the ledger, in account.jsonl, so that the spending of a run that was killed is compared too: up to
the reading with which the next one begins. Others that use the same key at the same time show as a difference.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import EngineError
from schemas.ledger import ACCOUNT
from tasks.generate.http.client import Client, Endpoint
from tasks.generate.ledger import Reconciliation, read_ledger, reconcile
from tasks.generate.paid import now_ms
from tasks.generate.prices import usd

FILE = "account.jsonl"
_LATE_SECONDS = (1.0, 2.0, 4.0)  # a bill may reach the account some seconds after its answer reached us

_log = logging.getLogger("eyas.generate")


@dataclass(frozen=True)
class Reading:
    """Dollars that the run's keys had used at one moment."""

    at_ms: int
    moment: Literal["before", "after"]
    used_usd: str  # exact


@dataclass(frozen=True)
class Stretch:
    """The time between two readings, in which the run asked, and what the two sides say of it."""

    start: Reading
    end: Reading
    found: Reconciliation

    def row(self) -> dict[str, Any]:
        """As a row of ACCOUNT."""
        return {
            "start_ms": self.start.at_ms,
            "end_ms": self.end.at_ms,
            "killed": self.end.moment == "before",
            "account_nanousd": self.found.account_nanousd,
            "ledger_nanousd": self.found.ledger_nanousd,
            "estimated_nanousd": self.found.estimated_nanousd,
            "unknown_nanousd": self.found.unknown_nanousd,
            "verdict": self.found.verdict,
        }


async def read_account(
    client: Client, endpoints: Sequence[Endpoint], folder: Path, moment: Literal["before", "after"]
) -> Reading | None:
    """Note what the keys have used; a server that does not say is told of in the log, and nothing is compared."""
    reading = await _reading(client, endpoints, moment)
    if reading and moment == "after":
        for seconds in _LATE_SECONDS:
            found = _stretches([*_readings(folder), reading], read_ledger(folder), {})
            if not found or found[-1].found.verdict != "differs":
                break
            await asyncio.sleep(seconds)
            reading = await _reading(client, endpoints, moment) or reading
    if reading:
        with open(folder / FILE, "ab") as handle:
            # begins a line of its own, also after one that a kill cut short
            handle.write(b"\n" + json.dumps(asdict(reading)).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
    return reading


def account_of(folder: Path, in_flight: Mapping[str, int]) -> list[Stretch]:
    """Every stretch of a run's spending, oldest first, and its verdict as things are known now.

    Args:
        folder: the ledger's.
        in_flight: reservations whose bill nobody knows, from the budget: id and worst cost.
    """
    return _stretches(_readings(folder), read_ledger(folder), in_flight)


def account_table(stretches: Sequence[Stretch]) -> pa.Table:
    """The stretches as a table, contract ACCOUNT."""
    return ACCOUNT.table([one.row() for one in stretches], "account")


def tell_account(stretches: Sequence[Stretch]) -> None:
    """A line on the stretch that ends now: whether the ledger says what the account says."""
    if not stretches:
        return None
    found = stretches[-1].found
    sums = f"the provider's account says {usd(found.account_nanousd)}, the ledger {usd(found.ledger_nanousd)}"
    if found.verdict == "agrees":
        return _log.info("spent by this run: %s; they agree to the cent", sums)
    if found.verdict == "explained":
        return _log.info(
            "spent by this run: %s; %d attempts of unknown bill (at most %s) and estimates of %s explain the rest",
            sums,
            len(found.unknown),
            usd(found.unknown_nanousd),
            usd(found.estimated_nanousd),
        )
    return _log.warning(
        "spent by this run: %s. They differ by %s, which nothing here explains: another program uses the key, or the "
        "provider bills what it does not say in its answers. Compare with the provider's list of generations",
        sums,
        usd(found.difference),
    )


async def _reading(client: Client, endpoints: Sequence[Endpoint], moment: Literal["before", "after"]) -> Reading | None:
    """The sum over keys; several endpoints of one key are one account."""
    keys = {(one.api_key.get_secret_value() if one.api_key else ""): one.name for one in reversed(endpoints)}
    used = Decimal(0)
    at_ms = now_ms()
    try:
        for name in sorted(keys.values()):
            used += Decimal(str((await client.get(name, "/key"))["data"]["usage"]))
    except (EngineError, KeyError, TypeError, ArithmeticError) as exc:
        _log.warning("the account cannot be read, so that the ledger is not compared with it: %s", exc)
        return None
    return Reading(at_ms if moment == "before" else now_ms(), moment, str(used))


def _readings(folder: Path) -> list[Reading]:
    try:
        lines = [line for line in (folder / FILE).read_bytes().splitlines() if line]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Reading(**json.loads(line)))
        except (ValueError, TypeError):  # cut short by a kill; what the ledger says is none the less whole
            _log.warning("%s has a line that is no reading: %r", folder / FILE, line[:80])
    return found


def _stretches(readings: Sequence[Reading], entries: pa.Table, in_flight: Mapping[str, int]) -> list[Stretch]:
    found = []
    for start, end in pairwise(readings):
        if start.moment == "after":  # nothing was asked until the next run began
            continue
        inside = pc.call_function("greater_equal", [entries["started_ms"], pa.scalar(start.at_ms)])
        before = pc.call_function("less_equal", [entries["started_ms"], pa.scalar(end.at_ms)])
        table = entries.filter(pc.call_function("and", [inside, before]))
        lost = in_flight if end.moment == "before" else {}
        lost = {name: worst for name, worst in lost.items() if name not in set(entries["attempt_id"].to_pylist())}
        found.append(Stretch(start, end, reconcile(table, start.used_usd, end.used_usd, lost)))
    return found
