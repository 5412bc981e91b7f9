"""A provider's counting rule is pinned, or read off enough of its answers, or the usual one; and it says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sections import CountingRule
from tasks.reconstruct.counting import FEWEST_ROWS, USUAL, Counting, Observation, counting_rules

RULES = [CountingRule(end_counted=end, reasoning_inside=inside) for end in (True, False) for inside in (True, False)]
usage = st.tuples(st.integers(2, 50), st.integers(1, 50))  # ids without reasoning, end id among them; reasoning ids


def observed(rule: CountingRule, rest: int, reasoning: int) -> Observation:
    """An answer of a provider that counts by this rule."""
    completion = rest + (reasoning if rule.reasoning_inside else 0) - (not rule.end_counted)
    return Observation("p", rest + reasoning, completion, reasoning)


@pytest.mark.parametrize("rule", RULES)
@given(answers=st.lists(usage, min_size=FEWEST_ROWS, max_size=12))
def test_each_rule_is_read_off_answers_that_were_counted_so(rule: CountingRule, answers: list[tuple[int, int]]):
    (found,) = counting_rules([observed(rule, *answer) for answer in answers], {}).values()
    assert found.source == "inferred"
    for rest, reasoning in answers:
        seen = observed(rule, rest, reasoning)
        assert found.billed(seen.completion_tokens, seen.reasoning_tokens, True) == seen.rebuilt


def test_too_few_answers_leave_the_usual_rule():
    rule = CountingRule(end_counted=False)
    assert counting_rules([observed(rule, 9, 3)] * (FEWEST_ROWS - 1), {}) == {}
    assert counting_rules([observed(rule, 9, 3)] * FEWEST_ROWS, {})["p"].rule == rule


def test_no_rule_is_taken_from_a_minority():
    fitting = [observed(CountingRule(end_counted=False), 9, 3)] * FEWEST_ROWS
    others = [Observation("p", 10, 500, 3)] * FEWEST_ROWS
    assert counting_rules(fitting + others, {}) == {}
    assert "p" in counting_rules([*fitting, *others[1:]], {})


def test_a_few_damaged_answers_do_not_change_the_rule():
    answers = [Observation("p", 10, 10, None)] * 20 + [Observation("p", 11, 10, None)] * 5
    assert counting_rules(answers, {})["p"] == Counting(USUAL.rule, "inferred", sure=True)


def test_without_reasoning_counts_it_is_taken_to_be_inside():
    assert counting_rules([Observation("p", 10, 10, 0)] * 9, {})["p"].rule.reasoning_inside


def test_a_pinned_rule_stands_whatever_the_answers_say():
    rule = CountingRule(end_counted=False)
    found = counting_rules([Observation("p", 10, 10, None)] * 9, {"p": rule, "q": rule})
    assert found == dict.fromkeys("pq", Counting(rule, "pinned", sure=True))


def test_providers_are_told_apart():
    answers = [Observation("p", 10, 10, 0)] * 5 + [Observation("q", 10, 9, 0)] * 5
    assert {name: found.rule.end_counted for name, found in counting_rules(answers, {}).items()} == {
        "p": True,
        "q": False,
    }


def test_a_cut_answer_has_no_end_id_to_count():
    counting = Counting(CountingRule(end_counted=False))
    assert counting.billed(10, None, ended=True) == 11
    assert counting.billed(10, None, ended=False) == 10


def test_absent_counts_say_nothing():
    assert USUAL.billed(None, 5, ended=True) is None
    assert Counting(CountingRule(reasoning_inside=False)).billed(10, None, ended=True) is None
    assert USUAL.billed(500, 420, ended=True) == 500  # inside: never added


def test_answers_that_may_lack_white_space_do_not_make_a_rule_sure():
    trimmed = [Observation("p", 10, 10, None, whole=False)] * 20
    assert counting_rules(trimmed, {})["p"] == Counting(USUAL.rule, "inferred", sure=False)
    whole = [Observation("p", 10, 9, None)] * FEWEST_ROWS
    assert counting_rules([*trimmed, *whole], {})["p"] == Counting(
        CountingRule(end_counted=False), "inferred", sure=True
    )


def test_whole_answers_without_reasoning_leave_it_to_the_others_where_reasoning_is_counted():
    whole = [Observation("p", 10, 10, 0)] * FEWEST_ROWS
    beside = [Observation("p", 30, 10, 20, whole=False)] * 2 * FEWEST_ROWS
    found = counting_rules([*whole, *beside], {})["p"]
    assert found == Counting(CountingRule(reasoning_inside=False), "inferred", sure=True)
