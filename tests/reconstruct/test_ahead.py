"""Tables are worked on ahead of their use: in order, a few at a time, and a failure comes through."""

import threading
from collections.abc import Iterator

import pytest

from tasks.reconstruct.ahead import ahead


def test_what_is_made_comes_in_order():
    assert list(ahead(lambda number: number * number, range(20))) == [number * number for number in range(20)]
    assert list(ahead(str, [])) == []


def test_only_a_few_are_taken_before_they_are_used():
    taken: list[int] = []

    def given() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    made = ahead(lambda number: number, given())
    next(made)
    assert len(taken) <= 3


def test_several_are_under_way_together():
    both = threading.Barrier(2, timeout=20)
    assert len(list(ahead(lambda _: both.wait(), range(4)))) == 4


def test_a_failure_comes_through():
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda number: 1 // number, [1, 0, 1]))
