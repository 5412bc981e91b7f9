"""Every attempt is in the ledger once, whatever kills the run; its sums are exact and explain the account's bill."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import StoreError
from schemas.ledger import LEDGER
from tasks.generate.budget import Budget, Caps, Reservation
from tasks.generate.durable import segment_path
from tasks.generate.http.client import Attempt
from tasks.generate.http.facts import Facts
from tasks.generate.ledger import Entry, Ledger, Sum, entry_of, read_ledger, reconcile, total, totals
from tasks.generate.prices import NANO, Price
from tests.generate.crashing import ANSWERS, entry
from tests.generate.kills import EVERY_STEP, Killer, killer, told

FACTS = Facts("A", "m", "fp8", "gen-1", 12, 400, 0.0012345)
ATTEMPT = Attempt("0" * 64, "http://127.0.0.1:1", 1, "answered", "", 200, 1_700_000_000.5, 2.25, "yes", FACTS)


def table_of(entries: list[Entry]) -> pa.Table:
    """A ledger of these entries."""
    return LEDGER.table([vars(one) for one in entries])


class TestEntries:
    def test_an_attempt_of_the_client_becomes_a_row(self) -> None:
        made = entry_of(ATTEMPT, "a1", "B3", 5_000_000)
        assert (made.cost_nanousd, made.billed, made.estimated) == (1_234_500, "yes", False)
        assert (made.started_ms, made.latency_ms, made.retry) == (1_700_000_000_500, 2250, 1)
        assert table_of([made]).num_rows == 1

    def test_a_bill_without_cost_is_estimated_and_marked(self) -> None:
        silent = replace(ATTEMPT, facts=Facts("A"))
        made = entry_of(silent, "a1", "B3", 5, estimate_nanousd=4)
        assert (made.cost_nanousd, made.estimated) == (4, True)
        with pytest.raises(ValueError, match="estimate it"):
            entry_of(silent, "a1", "B3", 5)

    def test_what_is_not_billed_costs_nothing_and_what_nobody_knows_has_no_cost(self) -> None:
        assert entry_of(replace(ATTEMPT, billed="no"), "a1", "B3", 5).cost_nanousd == 0
        assert entry_of(replace(ATTEMPT, billed="unknown"), "a1", "B3", 5).cost_nanousd is None

    def test_a_bill_without_amount_is_no_entry(self) -> None:
        with pytest.raises(ValueError, match="billed yes"):
            replace(entry(1), cost_nanousd=None)


class TestWriting:
    def test_entries_are_there_at_once_and_after_compaction(self, tmp_path: Path) -> None:
        with Ledger(tmp_path) as ledger:
            for number in range(5):
                ledger.record(entry(number))
            before = read_ledger(tmp_path)
            assert ledger.compact() == 5
            ledger.record(entry(5))
            after = read_ledger(tmp_path)
        assert before["attempt_id"].to_pylist() == [f"a{number}" for number in range(5)]
        assert after.slice(0, 5).equals(before)
        assert after["attempt_id"].to_pylist()[5:] == ["a5"]

    def test_a_corrected_entry_takes_the_place_of_the_first(self, tmp_path: Path) -> None:
        with Ledger(tmp_path) as ledger:
            ledger.record(replace(entry(1), billed="unknown", cost_nanousd=None, worst_nanousd=70))
            ledger.record(entry(2))
            ledger.compact()
            ledger.record(replace(entry(1), cost_nanousd=40))
            assert total(read_ledger(tmp_path)).cost_nanousd == 42
            assert total(read_ledger(tmp_path)).unknown == 0

    def test_a_ledger_of_nothing_is_an_empty_table(self, tmp_path: Path) -> None:
        assert read_ledger(tmp_path / "none").num_rows == 0
        assert total(read_ledger(tmp_path / "none")) == Sum()

    def test_one_process_writes(self, tmp_path: Path) -> None:
        with Ledger(tmp_path), pytest.raises(StoreError, match="being written"):
            Ledger(tmp_path)

    def test_a_damaged_entry_is_told_and_costs_no_other(self, tmp_path: Path) -> None:
        with Ledger(tmp_path) as ledger:
            for number in range(3):
                ledger.record(entry(number))
        path = segment_path(tmp_path, 1)
        content = bytearray(path.read_bytes())
        content[40] ^= 1
        path.write_bytes(content)
        with Ledger(tmp_path) as ledger:
            assert len(ledger.damage) == 1
            assert ledger.compact() == 2
        assert read_ledger(tmp_path)["attempt_id"].to_pylist() == ["a1", "a2"]
        assert path.with_suffix(".damaged").exists()

    @pytest.mark.parametrize(("moment", "step", "stride"), EVERY_STEP)
    def test_a_kill_at_any_step_loses_and_doubles_no_entry(
        self, kill: Killer, tmp_path: Path, moment: str, step: int, stride: int
    ) -> None:
        while kill.run("ledger", folder := tmp_path / str(step), step, moment):
            safe = {f"a{number}" for number in told(folder)}
            found = read_ledger(folder)["attempt_id"].to_pylist()
            assert len(found) == len({*found})
            assert safe <= {*found}
            assert len(found) <= len(safe) + 1
            with Ledger(folder) as ledger:
                ledger.compact()
            assert read_ledger(folder)["attempt_id"].to_pylist() == found
            step += stride
        assert len(read_ledger(folder)) == ANSWERS


@pytest.fixture(scope="module")
def kill() -> Any:
    with killer() as process:
        yield process


class TestTotals:
    ENTRIES = (
        replace(entry(1), dataset="B3", provider="A", cost_nanousd=100, prompt_tokens=3, completion_tokens=4),
        replace(entry(2), dataset="B3", provider="B", cost_nanousd=7, completion_tokens=5, estimated=True),
        replace(entry(3), dataset="B4", provider="A", outcome="rate_limited", billed="no", cost_nanousd=0),
        replace(
            entry(4), dataset="B4", outcome="timeout", billed="unknown", cost_nanousd=None, worst_nanousd=5 * 10**7
        ),
    )

    def test_attempts_add_up_by_each_column(self) -> None:
        table = table_of([*self.ENTRIES])
        assert totals(table, "dataset") == {"B3": Sum(2, 3, 9, 107, 1), "B4": Sum(2, 0, 0, 0, 0, 1, 5 * 10**7)}
        assert {name: one.attempts for name, one in totals(table, "provider").items()} == {"": 1, "A": 2, "B": 1}
        assert {*totals(table, "outcome")} == {"answered", "rate_limited", "timeout"}
        assert total(table).cost_nanousd == 107

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**14)), max_size=40))
    def test_sums_are_exact_and_parts_make_up_the_whole(self, costs: list[tuple[str, int]]) -> None:
        entries = [replace(entry(n), dataset=name, cost_nanousd=cost) for n, (name, cost) in enumerate(costs)]
        table = table_of(entries)
        assert total(table).cost_nanousd == sum(cost for _, cost in costs)
        assert sum(one.cost_nanousd for one in totals(table, "dataset").values()) == total(table).cost_nanousd


class TestReconciling:
    def test_an_account_that_moved_by_the_ledgers_sum_agrees(self) -> None:
        entries = [replace(entry(number), cost_nanousd=123_456_789) for number in range(1000)]
        found = reconcile(table_of(entries), "12.5", str(Decimal("12.5") + Decimal("123.456789")))
        assert (found.difference, found.agrees, found.explained) == (0, True, True)
        assert not found.unknown

    def test_less_than_a_cent_apart_agrees_and_a_cent_does_not(self) -> None:
        table = table_of([replace(entry(1), cost_nanousd=NANO)])
        assert reconcile(table, 0, 1.0099).agrees
        assert not reconcile(table, 0, 1.01).explained
        assert not reconcile(table, 0, 0.99).explained

    def test_unknown_bills_are_listed_and_can_explain_a_difference(self) -> None:
        table = table_of([*TestTotals.ENTRIES])
        found = reconcile(table, 0, 0.04)
        assert (found.agrees, found.explained) == (False, True)
        assert [(row["attempt_id"], row["outcome"], row["worst_nanousd"]) for row in found.unknown] == [
            ("a4", "timeout", 5 * 10**7)
        ]
        assert not reconcile(table, 0, 0.09).explained  # more than it can have cost

    def test_requests_in_flight_at_a_kill_are_listed_from_the_budget(self, tmp_path: Path) -> None:
        price = Price(completion=Decimal("0.001"))
        with Budget(tmp_path / "budget", Caps()) as budget, Ledger(tmp_path / "ledger") as ledger:
            answered, lost = (budget.reserve("B3", 0, 20, price) for _ in range(2))
            assert isinstance(answered, Reservation)
            assert isinstance(lost, Reservation)
            budget.settle(answered, 10, 10_000_000)
            ledger.record(replace(entry(1), attempt_id=answered.id, cost_nanousd=10_000_000))
        with Budget(tmp_path / "budget", Caps()) as budget:
            found = reconcile(read_ledger(tmp_path / "ledger"), 0, 0.03, budget.unreconciled())
            assert [(row["attempt_id"], row["outcome"]) for row in found.unknown] == [(lost.id, "in flight at a kill")]
            assert (found.agrees, found.explained, found.unknown_nanousd) == (False, True, 20_000_000)

    def test_estimates_explain_a_difference_up_to_their_sum(self) -> None:
        table = table_of([replace(entry(1), cost_nanousd=NANO, estimated=True)])
        assert reconcile(table, 0, 0.5).explained
        assert not reconcile(table, 0, 2.5).explained
