"""Nothing is spent past a cap: the worst case of a request is reserved before it is sent, and settled with its bill.

What is settled and what is reserved never exceed a cap together, in whole tokens and nano-dollars, also over kills:
each reservation is written to a log before `reserve` returns, which outlives the process at once and a power cut after
`Reservation.written`. Bills may be written later, since a lost one leaves its reservation standing. After a restart,
what was in flight counts as possibly charged until it is reconciled.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from schemas.errors import StoreError
from schemas.serving import BudgetSpec
from tasks.artifacts.files import sync_folder
from tasks.generate.durable import DurableLog, Record, lock_folder, segment_path
from tasks.generate.prices import Price, nanousd, usd

RUN = ""  # the account of the whole run, beside one for each dataset
_SEGMENT_BYTES = 32 * 2**20

Unit = Literal["tokens", "usd"]


@dataclass(frozen=True)
class Cap:
    """The most that may be spent; None is no cap."""

    tokens: int | None = None
    nanousd: int | None = None


@dataclass(frozen=True)
class Caps:
    """The caps of a run and of its datasets."""

    run: Cap = Cap()
    datasets: Mapping[str, Cap] = field(default_factory=dict)


@dataclass(frozen=True)
class Reservation:
    """The worst case of one attempt, set aside for it; its id is that of the attempt in the ledger."""

    id: str
    dataset: str
    tokens: int
    nanousd: int
    written: Future[int] = field(compare=False, repr=False)  # done when a power cut cannot undo it


@dataclass(frozen=True)
class Refusal:
    """Why a request may not be sent: the cap that its worst case would pass."""

    dataset: str  # RUN for the cap of the run
    unit: Unit
    cap: int
    committed: int  # settled and reserved
    worst: int

    def __str__(self) -> str:
        whose = f"dataset {self.dataset}" if self.dataset else "the run"
        show = usd if self.unit == "usd" else "{:,} tokens".format
        return (
            f"{whose} may spend {show(self.cap)}, has committed {show(self.committed)}, this needs {show(self.worst)}"
        )


@dataclass(frozen=True)
class Totals:
    """An account at one moment. `kept` is the part of `reserved` whose bill nobody knows."""

    settled_tokens: int = 0
    settled_nanousd: int = 0
    reserved_tokens: int = 0
    reserved_nanousd: int = 0
    kept: int = 0
    kept_nanousd: int = 0
    estimated: int = 0  # bills that were estimated


@dataclass
class _Account:
    settled_tokens: int = 0
    settled_nanousd: int = 0
    reserved_tokens: int = 0
    reserved_nanousd: int = 0
    estimated: int = 0


@dataclass
class _Open:
    """A reservation that is not settled."""

    dataset: str
    tokens: int
    nanousd: int
    kept: bool


class Budget:
    """The one budget of a run. Safe from threads and event loops; no call waits for the disk."""

    def __init__(self, folder: Path, caps: Caps, *, wait_seconds: float = 0) -> None:
        """Open, or create, with what earlier runs on this folder spent; caps may be others than theirs.

        Raises:
            StoreError: another process spends from it, or its log is damaged.
        """
        self.caps, self.folder = caps, folder
        self.overruns: list[tuple[str, int, int]] = []  # reservation; tokens, nano-dollars billed above its worst case
        self._accounts: dict[str, _Account] = {RUN: _Account()}
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._session, self._made = secrets.token_hex(6), 0
        self._lock_file = lock_folder(folder, wait_seconds)
        try:
            self._log = DurableLog(folder, self._replay, segment_bytes=_SEGMENT_BYTES, at_once=True)
        except BaseException:
            os.close(self._lock_file)
            raise
        try:
            if self._log.damage:
                raise StoreError(
                    f"{folder} is damaged, so what was spent is not known: compare with the provider's account, then "
                    "move the folder away and lower the caps by what was spent"
                )
            for standing in self._open.values():
                standing.kept = True  # in flight when an earlier run ended: it may have been charged
            self._write_snapshot()
        except BaseException:
            self.close()
            raise

    def reserve(self, dataset: str, worst_prompt_tokens: int, max_tokens: int, price: Price) -> Reservation | Refusal:
        """Set the worst case of one attempt aside, or say which cap it would pass."""
        tokens, cost = worst_prompt_tokens + max_tokens, price.worst_nanousd(worst_prompt_tokens, max_tokens)
        with self._lock:
            for name in (RUN, dataset):
                if refusal := self._refusal(name, tokens, cost):
                    return refusal
            self._made += 1
            name = f"{self._session}-{self._made}"
            written = self._append(["r", name, dataset, tokens, cost])
            self._take(name, dataset, tokens, cost)
        return Reservation(name, dataset, tokens, cost, written)

    def settle(self, reservation: str | Reservation, tokens: int, cost_nanousd: int) -> None:
        """Book what was billed; also reconciles a reservation that was kept."""
        self._close_one(reservation, tokens, cost_nanousd, False)

    def settle_estimated(self, reservation: str | Reservation, prompt_tokens: int, ids: int, price: Price) -> int:
        """Book what an answer without usage must have cost, by the ids rebuilt from it; returns that cost."""
        cost = price.cost_nanousd(prompt_tokens, ids)
        self._close_one(reservation, prompt_tokens + ids, cost, True)
        return cost

    def release(self, reservation: str | Reservation) -> None:
        """Give a reservation back: the attempt was certainly not billed."""
        self._close_one(reservation, 0, 0, False)

    def keep(self, reservation: str | Reservation) -> None:
        """Leave a reservation standing: nobody knows whether the attempt is billed. A retry needs one of its own."""
        name = _id(reservation)
        with self._lock:
            self._standing(name).kept = True
            self._append(["k", name])

    def totals(self, dataset: str = RUN) -> Totals:
        """An account at this moment."""
        with self._lock:
            account = self._accounts.get(dataset, _Account())
            kept = [one.nanousd for one in self._open.values() if one.kept and dataset in (RUN, one.dataset)]
            return Totals(
                account.settled_tokens,
                account.settled_nanousd,
                account.reserved_tokens,
                account.reserved_nanousd,
                len(kept),
                sum(kept),
                account.estimated,
            )

    def unreconciled(self) -> dict[str, int]:
        """Reservations whose bill nobody knows, and what each may have cost in nano-dollars."""
        with self._lock:
            return {name: one.nanousd for name, one in self._open.items() if one.kept}

    def close(self) -> None:
        """Write what was booked, free the lock."""
        self._log.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def __enter__(self) -> Budget:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _refusal(self, name: str, tokens: int, cost: int) -> Refusal | None:
        cap = self.caps.run if name == RUN else self.caps.datasets.get(name, Cap())
        account = self._accounts.get(name, _Account())
        token_sum = account.settled_tokens + account.reserved_tokens
        cost_sum = account.settled_nanousd + account.reserved_nanousd
        if cap.tokens is not None and token_sum + tokens > cap.tokens:
            return Refusal(name, "tokens", cap.tokens, token_sum, tokens)
        if cap.nanousd is not None and cost_sum + cost > cap.nanousd:
            return Refusal(name, "usd", cap.nanousd, cost_sum, cost)
        return None

    def _close_one(self, reservation: str | Reservation, tokens: int, cost: int, estimated: bool) -> None:
        if tokens < 0 or cost < 0:
            raise ValueError(f"a bill of {tokens} tokens and {cost} nano-dollars")
        name = _id(reservation)
        with self._lock:
            standing = self._standing(name)
            if tokens > standing.tokens or cost > standing.nanousd:
                over = (name, max(0, tokens - standing.tokens), max(0, cost - standing.nanousd))
                self.overruns.append(over)
            self._append(["s", name, tokens, cost, estimated])
            self._book(name, tokens, cost, estimated)

    def _standing(self, name: str) -> _Open:
        if (standing := self._open.get(name)) is None:
            raise ValueError(f"reservation {name} is settled already, or of another budget")
        return standing

    def _take(self, name: str, dataset: str, tokens: int, cost: int, kept: bool = False) -> None:
        self._open[name] = _Open(dataset, tokens, cost, kept)
        for account in self._both(dataset):
            account.reserved_tokens += tokens
            account.reserved_nanousd += cost

    def _book(self, name: str, tokens: int, cost: int, estimated: bool) -> None:
        standing = self._open.pop(name)
        for account in self._both(standing.dataset):
            account.reserved_tokens -= standing.tokens
            account.reserved_nanousd -= standing.nanousd
            account.settled_tokens += tokens
            account.settled_nanousd += cost
            account.estimated += estimated

    def _both(self, dataset: str) -> list[_Account]:
        return [self._accounts[RUN], self._accounts.setdefault(dataset, _Account())]

    def _append(self, entry: list[Any]) -> Future[int]:
        return self._log.submit(json.dumps(entry, separators=(",", ":")).encode())

    def _replay(self, record: Record) -> None:
        match json.loads(record.payload):
            case ["r", name, dataset, tokens, cost]:
                self._take(name, dataset, tokens, cost)
            case ["s", name, tokens, cost, estimated]:
                self._book(name, tokens, cost, estimated)
            case ["k", name]:
                self._open[name].kept = True
            case ["snapshot", accounts, standing]:
                self._accounts = {name: _Account(**account) for name, account in accounts.items()}
                self._open = {name: _Open(**one) for name, one in standing.items()}

    def _write_snapshot(self) -> None:
        """Begin a segment with the sum of all before, which can then go."""
        self._log.roll()
        accounts = {name: vars(account) for name, account in self._accounts.items()}
        standing = {name: vars(one) for name, one in self._open.items()}
        self._append(["snapshot", accounts, standing]).result()
        for segment in reversed(self._log.closed_segments):  # so that what a kill leaves still begins at the beginning
            segment_path(self.folder, segment).unlink()
            sync_folder(self.folder)


def caps_of(spec: BudgetSpec, approved_nanousd: int | None = None) -> Caps:
    """The recipe's caps, in which 0 is none; an approved amount is a cap for the run too."""
    run = [nanousd(spec.usd, ROUND_FLOOR)] if spec.usd else []
    run += [] if approved_nanousd is None else [approved_nanousd]
    names = {*spec.dataset_usd, *spec.dataset_tokens}
    return Caps(
        Cap(spec.tokens or None, min(run, default=None)),
        {
            name: Cap(
                spec.dataset_tokens.get(name) or None,
                nanousd(dollars, ROUND_FLOOR) if (dollars := spec.dataset_usd.get(name)) else None,
            )
            for name in sorted(names)
        },
    )


def _id(reservation: str | Reservation) -> str:
    return reservation if isinstance(reservation, str) else reservation.id
