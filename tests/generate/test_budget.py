"""No cap is ever passed, whatever is reserved, billed, kept or killed; sums are exact."""

from __future__ import annotations

import tempfile
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from schemas.errors import EngineError, StoreError
from schemas.serving import BudgetSpec, PriceSpec
from tasks.generate.budget import RUN, Budget, Cap, Caps, Refusal, Reservation, caps_of
from tasks.generate.durable import segment_path, segments_in
from tasks.generate.prices import (
    Price,
    dearest,
    nanousd,
    price_of_endpoints,
    price_of_model,
    price_of_recipe,
    usd,
)
from tests.generate.crashing import CAP
from tests.generate.kills import EVERY_STEP, MOMENTS, Killer, killer, told

PRICE = Price(prompt=Decimal("0.0000006"), completion=Decimal("0.0000000375"))


def taken(made: Reservation | Refusal) -> Reservation:
    """The reservation, which must have been given."""
    assert isinstance(made, Reservation)
    return made


class TestReserving:
    def test_the_worst_case_counts_until_the_bill_is_there(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps(Cap(tokens=1000))) as budget:
            first = taken(budget.reserve("B3", 100, 500, PRICE))
            refusal = budget.reserve("B3", 100, 500, PRICE)
            assert isinstance(refusal, Refusal)
            assert str(refusal) == "the run may spend 1,000 tokens, has committed 600 tokens, this needs 600 tokens"
            budget.settle(first, 150, 100)
            assert isinstance(budget.reserve("B3", 100, 500, PRICE), Reservation)

    def test_a_cap_can_be_met_exactly(self, tmp_path: Path) -> None:
        worst = PRICE.worst_nanousd(1, 7)
        with Budget(tmp_path, Caps(Cap(nanousd=10 * worst))) as budget:
            assert all(isinstance(budget.reserve("B3", 1, 7, PRICE), Reservation) for _ in range(10))
            assert isinstance(budget.reserve("B3", 1, 7, PRICE), Refusal)

    def test_a_dataset_at_its_cap_leaves_the_others_alone(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps(Cap(), {"B3": Cap(nanousd=0), "B4": Cap(tokens=5)})) as budget:
            refusal = budget.reserve("B3", 1, 1, PRICE)
            assert isinstance(refusal, Refusal)
            assert (refusal.dataset, refusal.unit) == ("B3", "usd")
            assert isinstance(budget.reserve("B4", 3, 3, PRICE), Refusal)
            assert isinstance(budget.reserve("B5", 3, 3, PRICE), Reservation)

    def test_an_unknown_bill_keeps_its_reservation_and_the_retry_is_a_second_one(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps(Cap(tokens=20))) as budget:
            lost = taken(budget.reserve("B3", 5, 5, PRICE))
            budget.keep(lost)
            retry = taken(budget.reserve("B3", 5, 5, PRICE))
            assert isinstance(budget.reserve("B3", 1, 0, PRICE), Refusal)
            budget.settle(retry, 7, 3)
            assert budget.unreconciled() == {lost.id: lost.nanousd}
            budget.settle(lost.id, 6, 2)  # the provider was asked by its generation's id
            assert not budget.unreconciled()
            assert (budget.totals().settled_tokens, budget.totals().settled_nanousd) == (13, 5)

    def test_what_is_settled_cannot_be_settled_again(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps()) as budget:
            one = taken(budget.reserve("B3", 5, 5, PRICE))
            budget.release(one)
            with pytest.raises(ValueError, match="settled already"):
                budget.settle(one, 1, 1)

    def test_missing_usage_is_estimated_and_marked(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps()) as budget:
            one = taken(budget.reserve("B3", 10, 50, PRICE))
            assert budget.settle_estimated(one, 10, 20, PRICE) == 6750
            totals = budget.totals("B3")
            assert (totals.settled_tokens, totals.settled_nanousd, totals.estimated) == (30, 6750, 1)

    def test_a_bill_above_the_worst_case_is_booked_in_full_and_told(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps(Cap(tokens=100))) as budget:
            one = taken(budget.reserve("B3", 10, 20, PRICE))
            budget.settle(one, 90, one.nanousd + 4)
            assert budget.overruns == [(one.id, 60, 4)]
            assert isinstance(budget.reserve("B3", 1, 10, PRICE), Refusal)

    def test_threads_share_the_cap(self, tmp_path: Path) -> None:
        made: list[Reservation | Refusal] = []
        with Budget(tmp_path, Caps(Cap(tokens=1000))) as budget:

            def work() -> None:
                made.extend(budget.reserve("B3", 3, 4, PRICE) for _ in range(100))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            given = [one for one in made if isinstance(one, Reservation)]
            assert len({one.id for one in given}) == len(given) == 142
            assert budget.totals().reserved_tokens == 994


class TestRestarts:
    def test_spending_is_remembered_and_what_was_in_flight_counts_as_charged(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps()) as budget:
            budget.settle(taken(budget.reserve("B3", 5, 5, PRICE)), 8, 77)
            lost = taken(budget.reserve("B4", 5, 5, PRICE))
        for _ in range(3):  # however often it is opened
            with Budget(tmp_path, Caps(Cap(tokens=19))) as budget:
                assert (budget.totals().settled_nanousd, budget.totals("B3").settled_tokens) == (77, 8)
                assert budget.unreconciled() == {lost.id: lost.nanousd}
                assert isinstance(budget.reserve("B4", 1, 1, PRICE), Refusal)
            assert len(segments_in(tmp_path)) <= 2
        with Budget(tmp_path, Caps()) as budget:
            budget.release(lost.id)
            assert budget.totals().reserved_tokens == 0

    def test_starts_that_are_cut_short_while_old_segments_go_forget_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tasks.generate.budget._SEGMENT_BYTES", 1)
        with Budget(tmp_path, Caps()) as budget:
            one = taken(budget.reserve("B3", 5, 5, PRICE))
            one.written.result()
            budget.settle(one, 8, 77)
        assert len(segments_in(tmp_path)) > 2
        unlink, left = Path.unlink, 0

        def stop_after(path: Path) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            unlink(path)

        monkeypatch.setattr(Path, "unlink", stop_after)
        for goes in (0, 0, 1, 0, 2):
            left = goes
            with pytest.raises(KeyboardInterrupt):
                Budget(tmp_path, Caps())
        monkeypatch.undo()
        with Budget(tmp_path, Caps()) as budget:
            totals = budget.totals("B3")
            assert (totals.settled_tokens, totals.settled_nanousd, totals.reserved_tokens) == (8, 77, 0)

    def test_one_process_spends(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps()), pytest.raises(StoreError, match="being written"):
            Budget(tmp_path, Caps())

    def test_a_damaged_log_spends_nothing_more(self, tmp_path: Path) -> None:
        with Budget(tmp_path, Caps()) as budget:
            for _ in range(3):
                budget.reserve("B3", 5, 5, PRICE)
        path = segment_path(tmp_path, segments_in(tmp_path)[-1])
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)
        for _ in range(2):
            with pytest.raises(StoreError, match="what was spent is not known"):
                Budget(tmp_path, Caps())

    @pytest.mark.parametrize(("moment", "step", "stride"), EVERY_STEP)
    def test_the_cap_holds_over_a_kill_at_any_step(
        self, kill: Killer, tmp_path: Path, moment: str, step: int, stride: int
    ) -> None:
        while kill.run("budget", folder := tmp_path / str(step), step, moment):
            reserved, settled = sums(told(folder))
            with Budget(folder, Caps(Cap(tokens=CAP))) as budget:
                totals = budget.totals()
                committed = totals.settled_tokens + totals.reserved_tokens
                # at most one reservation was made, and one settled, that was not told
                assert reserved + settled - 1000 <= committed <= min(CAP, reserved + settled + 1000)
                standing = {fact[1] for fact in told(folder) if fact[0] == "reserved"}
                standing -= {fact[1] for fact in told(folder) if fact[0] == "settled"}
                assert len(standing - {*budget.unreconciled()}) <= 1
            step += stride
        assert step > 15

    def test_the_cap_holds_over_many_kills_of_one_run(self, kill: Killer, tmp_path: Path) -> None:
        for step in range(4, 40, 3):
            kill.run("budget", tmp_path / "b", step, MOMENTS[step % 3])
            with Budget(tmp_path / "b", Caps(Cap(tokens=CAP))) as budget:
                totals = budget.totals()
                assert totals.settled_tokens + totals.reserved_tokens <= CAP
        names = {fact[1] for fact in told(tmp_path / "b") if fact[0] == "reserved"}
        assert len(names) == sum(fact[0] == "reserved" for fact in told(tmp_path / "b"))


def sums(facts: list[Any]) -> tuple[int, int]:
    """Tokens reserved and not settled, and settled, as far as a child told."""
    reserved = {fact[1]: 1000 for fact in facts if fact[0] == "reserved"}
    settled = {fact[1]: fact[2] for fact in facts if fact[0] == "settled"}
    return sum(tokens for name, tokens in reserved.items() if name not in settled), sum(settled.values())


@pytest.fixture(scope="module")
def kill() -> Any:
    with killer() as process:
        yield process


class Spending(RuleBasedStateMachine):
    """Any order of reservations, bills, kept ones and restarts, against sums kept by hand."""

    reservations: Bundle[Reservation] = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.caps = Caps(Cap(tokens=5_000, nanousd=2_000_000), {"a": Cap(tokens=3_000), "b": Cap(nanousd=900_000)})
        self.budget = Budget(Path(self.scratch.name), self.caps)
        self.settled = {"a": [0, 0], "b": [0, 0], "c": [0, 0]}
        self.open: dict[str, Reservation] = {}

    @rule(
        target=reservations,
        dataset=st.sampled_from("abc"),
        prompt=st.integers(0, 700),
        limit=st.integers(1, 900),
        price=st.decimals("0", "0.000001", places=11),
    )
    def reserve(self, dataset: str, prompt: int, limit: int, price: Decimal) -> Any:
        made = self.budget.reserve(dataset, prompt, limit, one := Price(price, price * 2))
        if isinstance(made, Refusal):
            cap = self.caps.run if made.dataset == RUN else self.caps.datasets[made.dataset]
            limit_of = cap.tokens if made.unit == "tokens" else cap.nanousd
            assert limit_of is not None
            assert made.committed + made.worst > limit_of
            return []  # nothing to settle
        assert made.nanousd == one.worst_nanousd(prompt, limit)
        self.open[made.id] = made
        return made

    @rule(made=consumes(reservations), share=st.fractions(0, 1), estimated=st.booleans())
    def settle(self, made: Any, share: Any, estimated: bool) -> None:
        if not made:
            return
        tokens, cost = int(made.tokens * share), int(made.nanousd * share)
        if estimated:
            cost = self.budget.settle_estimated(made, 0, tokens, Price())
        else:
            self.budget.settle(made.id, tokens, cost)
        del self.open[made.id]
        self.settled[made.dataset][0] += tokens
        self.settled[made.dataset][1] += cost

    @rule(made=consumes(reservations))
    def release(self, made: Any) -> None:
        if made:
            self.budget.release(made)
            del self.open[made.id]

    @rule(made=reservations)
    def keep(self, made: Any) -> None:
        if made and made.id in self.open:
            self.budget.keep(made)

    @rule()
    def restart(self) -> None:
        self.budget.close()
        self.budget = Budget(Path(self.scratch.name), self.caps)
        assert {*self.budget.unreconciled()} == {*self.open}

    @invariant()
    def sums_are_exact_and_below_the_caps(self) -> None:
        for dataset in ("a", "b", "c", RUN):
            totals = self.budget.totals(dataset)
            settled = [amounts for name, amounts in self.settled.items() if dataset in (RUN, name)]
            reserved = [one for one in self.open.values() if dataset in (RUN, one.dataset)]
            assert totals.settled_tokens == sum(tokens for tokens, _ in settled)
            assert totals.settled_nanousd == sum(cost for _, cost in settled)
            assert totals.reserved_tokens == sum(one.tokens for one in reserved)
            assert totals.reserved_nanousd == sum(one.nanousd for one in reserved)
            cap = self.caps.run if dataset == RUN else self.caps.datasets.get(dataset, Cap())
            assert cap.tokens is None or totals.settled_tokens + totals.reserved_tokens <= cap.tokens
            assert cap.nanousd is None or totals.settled_nanousd + totals.reserved_nanousd <= cap.nanousd

    def teardown(self) -> None:
        self.budget.close()
        self.scratch.cleanup()


Spending.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestSpending = Spending.TestCase


class TestPrices:
    MODELS: ClassVar[Any] = {
        "data": [
            {
                "id": "moonshotai/kimi-k2.5",
                "canonical_slug": "moonshotai/kimi-k2.5-0127",
                "pricing": {
                    "prompt": "0.0000006",
                    "completion": "0.000003",
                    "request": "0",
                    "input_cache_read": "0.0000001",
                    "overrides": [{"min_prompt_tokens": 200000, "prompt": "0.0000012", "completion": "0.000006"}],
                },
            },
            {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        ]
    }
    ENDPOINTS: ClassVar[Any] = {
        "data": {
            "id": "m",
            "endpoints": [
                {
                    "provider_name": "A",
                    "quantization": "fp8",
                    "pricing": {"prompt": "0.000001", "completion": "0.000002"},
                },
                {
                    "provider_name": "B",
                    "quantization": "int4",
                    "pricing": {"prompt": "0.000002", "completion": "0.000001"},
                },
                {"provider_name": "C", "quantization": None, "pricing": {"prompt": "1", "completion": "1"}},
            ],
        }
    }

    def test_the_recipe_says_it_by_the_million(self) -> None:
        price = price_of_recipe(PriceSpec(prompt_usd_per_million=0.6, completion_usd_per_million=2.5))
        assert (price.prompt, price.completion) == (Decimal("6E-7"), Decimal("2.5E-6"))
        assert price.worst_nanousd(1000, 10_240) == 600_000 + 25_600_000

    def test_a_listed_model_costs_its_dearest_override(self) -> None:
        price = price_of_model(self.MODELS, "moonshotai/kimi-k2.5-0127")
        assert (price.prompt, price.completion) == (Decimal("0.0000012"), Decimal("0.000006"))
        assert price.worst_nanousd(1, 1) == 7_200

    def test_cached_tokens_are_cheaper_afterwards_not_beforehand(self) -> None:
        price = Price(Decimal("0.0000006"), Decimal("0.000003"), cached=Decimal("0.0000001"))
        assert price.cost_nanousd(10, 1, cached_tokens=4) == 3_600 + 400 + 3_000
        assert price.worst_nanousd(10, 1) == 9_000

    def test_of_the_providers_that_may_answer_the_dearest_counts(self) -> None:
        price = price_of_endpoints(self.ENDPOINTS, lambda provider, quantization: quantization != "unknown")
        assert (price.prompt, price.completion) == (Decimal("0.000002"), Decimal("0.000002"))

    @pytest.mark.parametrize("model", ["openrouter/auto", "nobody/nothing"])
    def test_an_unknown_worst_case_is_refused(self, model: str) -> None:
        with pytest.raises(EngineError, match=model):
            price_of_model(self.MODELS, model)

    def test_no_provider_left_is_refused(self) -> None:
        with pytest.raises(EngineError, match=r"serving\.provider"):
            price_of_endpoints(self.ENDPOINTS, lambda provider, quantization: False)

    @given(st.lists(st.tuples(*[st.decimals("0", "1", places=12)] * 5), min_size=1, max_size=4), st.data())
    def test_no_price_passes_the_worst_case_of_the_dearest(self, numbers: Any, data: st.DataObject) -> None:
        prices = [Price(*amounts) for amounts in numbers]
        prompt, limit = data.draw(st.integers(0, 999)), data.draw(st.integers(0, 999))
        cached, made = data.draw(st.integers(0, prompt)), data.draw(st.integers(0, limit))
        worst = dearest(prices).worst_nanousd(prompt, limit)
        assert all(price.cost_nanousd(prompt, made, cached) <= worst for price in prices)

    @given(st.integers(0, 10**15))
    def test_money_is_exact(self, nano: int) -> None:
        assert nanousd(Decimal(nano) / 10**9) == nano

    def test_money_is_rounded_up_and_floats_count_as_printed(self) -> None:
        assert nanousd(0.1) == 100_000_000
        assert nanousd("0.0000000001") == 1
        assert usd(86_120_000_000) == "$86.12"
        assert usd(1) == "$0.000000001"
        with pytest.raises(EngineError, match="no number"):
            nanousd("much")

    def test_caps_are_rounded_down_and_zero_is_none(self) -> None:
        spec = BudgetSpec(usd=0.1234567899, tokens=0, dataset_usd={"B3": 2, "B4": 0}, dataset_tokens={"B3": 9})
        caps = caps_of(spec)
        assert caps.run == Cap(None, 123_456_789)
        assert caps.datasets == {"B3": Cap(9, 2 * 10**9), "B4": Cap()}
        assert caps_of(spec, approved_nanousd=50_000_000).run.nanousd == 50_000_000
        assert caps_of(BudgetSpec(), approved_nanousd=0).run.nanousd == 0
