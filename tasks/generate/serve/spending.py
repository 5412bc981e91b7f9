"""The money of a run's attempts: reserved before each, booked after it, one entry in the ledger for every one.

Asked by the client before an attempt, told by it afterwards. A request that the budget has no room for now, but may
have when others are settled, waits its turn here; only a cap that nothing in flight can make room under is reached.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from schemas.errors import StoreError
from tasks.generate.budget import RUN, Budget, Refusal, Reservation
from tasks.generate.http.client import Attempt
from tasks.generate.http.dialects import Prepared
from tasks.generate.http.facts import Facts
from tasks.generate.ledger import Entry, Ledger, entry_of
from tasks.generate.prices import Price, nanousd

Reported = Callable[[Attempt, str], None]  # an attempt, and its dataset


@dataclass
class Purchase:
    """One request on its way, however many attempts it takes."""

    dataset: str
    prompt_tokens: int  # as many as there can be
    max_tokens: int
    reservation: Reservation | None = None  # of the attempt in flight, or of the answer that is not booked yet
    attempt: Attempt | None = None  # which was answered
    refusal: Refusal | None = None
    is_estimated: bool = False
    seen: int = 0  # settlements of the account that refused, when it did


@dataclass
class _InFlight:
    tokens: int = 0
    nanousd: int = 0

    def change(self, reservation: Reservation, sign: int) -> None:
        self.tokens += sign * reservation.tokens
        self.nanousd += sign * reservation.nanousd


class Spending:
    """Reserves and books for one dispatch, in its event loop."""

    def __init__(
        self, budget: Budget, ledger: Ledger, price: Price, reported: Reported, *, tells_bills: bool = False
    ) -> None:
        """
        Args:
            budget, ledger: where attempts are booked and entered.
            price: the worst that may be asked for.
            reported: told of every attempt too.
            tells_bills: the server can be asked for a generation's bill later; until then its worst case stands.
        """
        self._budget, self._ledger, self._price, self._reported = budget, ledger, price, reported
        self._tells_bills = tells_bills
        self._purchases: dict[str, Purchase] = {}
        self._in_flight: defaultdict[str, _InFlight] = defaultdict(_InFlight)
        self._settled: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._closed = False
        self.capped: dict[str, Refusal] = {}  # accounts whose cap is reached
        self.broken: StoreError | None = None  # why nothing may be sent any more

    def open(self, key: str, purchase: Purchase) -> None:
        """Begin with a request."""
        self._purchases[key] = purchase

    def close(self, key: str) -> None:
        """Be done with it."""
        del self._purchases[key]

    def is_capped(self, dataset: str) -> bool:
        """Whether nothing may be sent for a dataset any more."""
        return RUN in self.capped or dataset in self.capped

    def permit(self, prepared: Prepared, retry: int) -> bool:
        """Reserve the worst case of an attempt."""
        purchase = self._purchases[prepared.key]
        if self.broken:
            return False
        try:
            found = self._budget.reserve(purchase.dataset, purchase.prompt_tokens, purchase.max_tokens, self._price)
        except StoreError as exc:
            self.broken = exc
            return False
        if isinstance(found, Refusal):
            self._refused(purchase, found)
            return False
        purchase.reservation, purchase.refusal = found, None
        for account in (RUN, purchase.dataset):
            self._in_flight[account].change(found, 1)
            self._wake(account)
        return True

    def report(self, attempt: Attempt) -> None:
        """Enter an attempt in the ledger, and book it unless it was answered: that waits until the answer is safe."""
        purchase = self._purchases[attempt.key]
        self._reported(attempt, purchase.dataset)
        reservation = purchase.reservation
        assert reservation, "an attempt without a reservation"
        try:
            if attempt.outcome == "answered":
                purchase.attempt = attempt
                if attempt.facts.completion_tokens is not None:
                    self._enter(attempt, reservation, purchase)
            else:
                self._book(self._enter(attempt, reservation, purchase), purchase)
        except StoreError as exc:
            self.broken = exc  # whatever is not booked stays reserved

    def estimate(self, key: str, prompt_tokens: int, ids: int) -> None:
        """Enter an answer that does not say what was used, by the ids counted from it."""
        purchase = self._purchases[key]
        assert purchase.attempt
        assert purchase.reservation
        facts = replace(purchase.attempt.facts, prompt_tokens=prompt_tokens, completion_tokens=ids)
        purchase.attempt = replace(purchase.attempt, facts=facts, billed="yes")
        purchase.is_estimated = True
        self._enter(purchase.attempt, purchase.reservation, purchase)

    def facts(self, key: str) -> tuple[Facts, str, int]:
        """What is known of an answer, its reservation, and its cost."""
        purchase = self._purchases[key]
        assert purchase.attempt
        assert purchase.reservation
        return purchase.attempt.facts, purchase.reservation.id, self._cost(purchase.attempt.facts)

    def settle(self, key: str) -> None:
        """Book an answer that is safe on disk."""
        purchase = self._purchases[key]
        assert purchase.attempt
        assert purchase.reservation
        self._book(self._entry(purchase.attempt, purchase.reservation, purchase), purchase)

    async def room(self, purchase: Purchase) -> None:
        """After a refusal: wait until it is worth asking again, or the cap is reached for good."""
        refusal = purchase.refusal
        if refusal is None or self._closed or self._settled[refusal.dataset] != purchase.seen:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[refusal.dataset].append(waiting)
        await waiting
        if self.is_capped(purchase.dataset):
            self._wake(refusal.dataset)  # who does not ask again leaves its turn to the next

    def release_all(self) -> None:
        """Let nobody wait any more."""
        self._closed = True
        for account in list(self._waiting):
            self._wake_all(account)

    def _refused(self, purchase: Purchase, refusal: Refusal) -> None:
        in_flight = self._in_flight[refusal.dataset]
        can_free = in_flight.tokens if refusal.unit == "tokens" else in_flight.nanousd
        purchase.refusal, purchase.seen = refusal, self._settled[refusal.dataset]
        self._wake(purchase.dataset if refusal.dataset == RUN else RUN)  # whose turn it may have had
        if refusal.committed - can_free + refusal.worst > refusal.cap:
            self.capped.setdefault(refusal.dataset, refusal)
            for account in [refusal.dataset] if refusal.dataset else list(self._waiting):
                self._wake_all(account)

    def _enter(self, attempt: Attempt, reservation: Reservation, purchase: Purchase) -> Entry:
        entry = self._entry(attempt, reservation, purchase)
        self._ledger.record(entry)
        return entry

    def _entry(self, attempt: Attempt, reservation: Reservation, purchase: Purchase) -> Entry:
        cost = self._cost(attempt.facts)
        entry = entry_of(attempt, reservation.id, purchase.dataset, reservation.nanousd, estimate_nanousd=cost)
        # a price of nothing is known exactly, a count of ours is not
        return replace(entry, estimated=purchase.is_estimated or (entry.estimated and cost > 0))

    def _cost(self, facts: Facts) -> int:
        if facts.cost_usd is not None:
            return nanousd(facts.cost_usd)
        return self._price.cost_nanousd(facts.prompt_tokens or 0, facts.completion_tokens or 0)

    def _book(self, entry: Entry, purchase: Purchase) -> None:
        reservation = purchase.reservation
        assert reservation
        purchase.reservation = None
        if not purchase.is_estimated:
            book(self._budget, reservation.id, entry)
        elif self._tells_bills and entry.generation_id:
            self._budget.keep(reservation)
        else:
            counted = entry.prompt_tokens or 0, entry.completion_tokens or 0
            self._budget.settle_estimated(reservation, *counted, self._price)
        for account in (RUN, purchase.dataset):
            self._in_flight[account].change(reservation, -1)
            self._settled[account] += 1
            self._wake(account)

    def _wake(self, account: str) -> None:
        waiting = self._waiting[account]
        while waiting:
            if not (first := waiting.popleft()).done():
                return first.set_result(None)
        return None

    def _wake_all(self, account: str) -> None:
        while self._waiting[account]:
            self._wake(account)


def book(budget: Budget, reservation: str, entry: Entry) -> None:
    """Book a reservation as the ledger has it."""
    if entry.billed == "no":
        budget.release(reservation)
    elif entry.billed == "unknown" or entry.cost_nanousd is None:
        budget.keep(reservation)
    else:
        budget.settle(reservation, (entry.prompt_tokens or 0) + (entry.completion_tokens or 0), entry.cost_nanousd)
