"""Bills that were unknown when an attempt ended: asked for by the generation's id, or read off the ledger."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import fields
from typing import Any

from schemas.errors import EngineError
from tasks.generate.budget import Budget
from tasks.generate.http.client import Client
from tasks.generate.ledger import Entry, Ledger, read_ledger
from tasks.generate.prices import nanousd
from tasks.generate.serve.spending import book

_AT_ONCE = 32
_FIELDS = [field.name for field in fields(Entry)]

_log = logging.getLogger("eyas.generate")


def book_known(ledger: Ledger, budget: Budget) -> None:
    """Book reservations that a kill left standing though the ledger has what they cost."""
    if standing := budget.unreconciled():
        for row in read_ledger(ledger.folder).to_pylist():
            if row["attempt_id"] in standing and row["billed"] != "unknown":
                book(budget, row["attempt_id"], _entry(row))


async def reconcile_unknown(client: Client, ledger: Ledger, budget: Budget) -> None:
    """Ask OpenRouter for the bills of attempts whose generation has an id, and book them; others stay as they are."""
    entries = read_ledger(ledger.folder).to_pylist()
    unknown = [row for row in entries if row["billed"] == "unknown" or row["estimated"]]
    rows = [row for row in unknown if row["generation_id"]]
    free = asyncio.Semaphore(_AT_ONCE)
    standing = budget.unreconciled()

    async def look_up(row: dict[str, Any]) -> bool:
        async with free:
            try:
                told = (await client.get(row["endpoint"], f"/generation?id={row['generation_id']}"))["data"]
                bill = {
                    "cost_nanousd": nanousd(told["total_cost"]),
                    "prompt_tokens": told.get("native_tokens_prompt"),
                    "completion_tokens": told.get("native_tokens_completion"),
                    "billed": "yes",
                    "estimated": False,
                }
            except (EngineError, KeyError, TypeError) as exc:
                _log.info("the bill of %s is not known yet: %s", row["generation_id"], exc)
                return False
        entry = _entry(row | bill)
        ledger.record(entry)
        if row["attempt_id"] in standing:
            book(budget, row["attempt_id"], entry)
        return True

    found = sum(await asyncio.gather(*[look_up(row) for row in rows]))
    if unknown:
        _log.info("%d attempts had an unknown bill; %d of them are known now", len(unknown), found)


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(**{name: row[name] for name in _FIELDS})
