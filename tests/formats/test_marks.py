"""Letters of control ids, and rules over them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.format import Fault
from tasks.formats.marker_text import any_of
from tasks.formats.marks import Marks, Rule, Rulebook
from tasks.formats.sections import Grammar, Span, Tools

LETTERS = {3: "a", 7: "b"}
MARKS = Marks(10, LETTERS)
ROWS = st.lists(st.lists(st.integers(-2, 12), max_size=8).map(lambda row: np.array(row, dtype=np.int32)), max_size=6)


@given(ROWS)
def test_a_row_is_its_letters_in_order(rows: list[np.ndarray]):
    for row, marks in zip(rows, MARKS.of(rows), strict=True):
        tail = "_" if len(row) and int(row[-1]) not in LETTERS else ""
        assert marks == "".join(LETTERS.get(number, "") for number in row.tolist()) + tail


@given(ROWS, st.integers(1, 4))
def test_the_last_letter_is_found_however_far_back(rows: list[np.ndarray], window: int):
    plain = ["".join(LETTERS.get(number, "") for number in row.tolist())[-1:] for row in rows]
    assert MARKS.last(rows, window) == plain


def test_the_first_rule_that_finds_something_names_the_fault():
    rules = Rulebook([Rule("twice", "aa", "two a"), Rule("any", lambda marks: "b" in marks, "a b")], {"a": "<a>"})
    assert rules.fault("aab") == Fault("twice", "two a; its markers: <a> <a>")
    assert rules.fault("b") == Fault("any", "a b; its markers: none")
    assert rules.fault("a") is None


def test_a_long_list_of_markers_is_shortened():
    fault = Rulebook([Rule("many", "a", "many")], {"a": "<a>"}).fault("a" * 1000)
    assert fault
    assert fault.detail.count("<a>") == 16
    assert "(984 more)" in fault.detail


def test_a_torn_section_counts_only_where_the_answer_was_cut():
    grammar = Grammar(Tools({"<s>": "[", "<c>": "{", "</c>": "}", "</s>": "]"}, r"\[(?:\{\})+\]", lambda _: ()))
    assert grammar.find("[{}{}][{", cut=True) == [Span(0, 6, True), Span(6, 8, False)]
    assert grammar.find("[{}{}][{", cut=False) == [Span(0, 6, True)]
    assert grammar.torn("[{}][{", cut=False)
    assert not grammar.torn("[{}][{", cut=True)
    assert grammar.torn("[{}]}", cut=True)
    assert grammar.torn("[{)}]", cut=False)


@given(st.lists(st.text("<ab|>", min_size=1, max_size=4), max_size=8), st.text("<ab|>", max_size=30))
def test_markers_are_found_the_longest_first(markers: list[str], text: str):
    found = [match.span() for match in any_of(markers).finditer(text)]
    expected, place = [], 0
    while place < len(text):
        longest = max((len(marker) for marker in markers if text.startswith(marker, place)), default=0)
        if longest:
            expected.append((place, place + longest))
        place += longest or 1
    assert found == expected
