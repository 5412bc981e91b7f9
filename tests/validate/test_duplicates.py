"""Conversations that ask nearly the same are found, the first stays, and nothing depends on process or run."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.validate.duplicates import SLOTS, Conversation, NearDuplicates, bands_for, words_of
from tests.rows import prompt_id

LONG = " ".join(f"word{number}" for number in range(60))


def said(number: int, text: str, root: int | None = None, frame: str = "") -> Conversation:
    return Conversation(prompt_id(number), prompt_id(number if root is None else root), text, frame)


def alike(*conversations: Conversation, similarity: float = 0.9) -> list[str | None]:
    return NearDuplicates(similarity).first_alike(conversations)


def test_a_changed_word_is_nearly_the_same_and_half_the_words_are_not():
    other = LONG.replace("word59", "end")
    half = " ".join(f"word{number}" for number in range(30)) + " " + " ".join(f"new{n}" for n in range(30))
    assert alike(said(1, LONG), said(2, other), said(3, half)) == [None, prompt_id(1), None]


def test_case_and_the_punctuation_of_prose_do_not_matter():
    assert alike(said(1, LONG), said(2, LONG.upper() + "!")) == [None, prompt_id(1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Solve x + 3 = 0 for x", "Solve x - 3 = 0 for x"),
        ("Compute 1 + 2", "Compute 1 - 2"),
        ("What is 1.5 times two plus one", "What is 15 times two plus one"),
        ("请用三句话解释什么是机器学习", "请用三句话解释什么是光合作用"),
    ],
)
def test_questions_that_differ_in_a_sign_are_two(one: str, other: str):
    assert alike(said(1, one), said(2, other)) == [None, None]


def test_scripts_without_spaces_are_compared_by_character():
    text = (
        "机器学习是人工智能的一个分支请用通俗易懂的语言向一个十岁的孩子解释它是什么并举出三个生活中的例子说明它的用处"
    )
    assert alike(said(1, text), said(2, text + "吧")) == [None, prompt_id(1)]


def test_short_questions_are_alike_only_if_equal_and_asked_of_the_same_assistant():
    hello = [said(1, "Hi there"), said(2, "hi  there"), said(3, "Hi you"), said(4, "Hi there", frame="tools")]
    assert alike(*hello) == [None, prompt_id(1), None, None]


def test_long_questions_are_alike_only_under_the_same_system_text_and_tools():
    asked = [said(n, LONG, frame=frame) for n, frame in enumerate(["", "Be brief.", "Be kind.", "Be brief."], 1)]
    assert alike(*asked) == [None, None, None, prompt_id(2)]
    assert alike(*asked, similarity=0.05) == [None, None, None, prompt_id(2)]


def test_a_word_more_under_the_same_frame_is_still_nearly_the_same():
    assert alike(said(1, LONG, frame="S"), said(2, LONG + " please", frame="S")) == [None, prompt_id(1)]


def test_turns_of_one_conversation_are_not_held_against_each_other():
    turns = [said(n, LONG + " more" * n, root=1) for n in range(1, 4)]
    again = said(9, LONG + " more")
    assert alike(*turns, again) == [None, None, None, prompt_id(1)]


def test_equal_turns_of_one_agent_take_one_place():
    found = NearDuplicates(0.9)
    found.first_alike([said(n, LONG, root=1) for n in range(1, 50)])
    assert len(found) == 1


def test_what_is_alike_to_a_row_that_went_may_stay():
    """A chain of small changes: each row is held against those that stay only."""
    chain = [LONG.split()[n:] + [f"new{k}" for k in range(n)] for n in (0, 3, 6)]
    rows = [said(n, " ".join(words)) for n, words in enumerate(chain, 1)]
    found = NearDuplicates(0.85)
    assert found.first_alike(rows) == [None, prompt_id(1), None]


def test_a_conversation_without_words_is_like_none():
    assert alike(said(1, ""), said(2, " \n"), said(3, "")) == [None, None, None]


def test_rows_in_several_calls_are_compared_like_rows_in_one():
    rows = [said(n, f"{LONG} {n // 2} {n // 2}") for n in range(1, 9)]
    found = NearDuplicates(0.9)
    assert [one for row in rows for one in found.first_alike([row])] == alike(*rows)


def test_the_index_grows_past_its_first_room():
    rows = [said(n, " ".join(f"w{n}x{k}" for k in range(12))) for n in range(1, 2100)]
    found = NearDuplicates(0.9)
    assert not any(found.first_alike(rows))
    assert found.first_alike([said(9999, rows[-1].said)]) == [rows[-1].prompt_id]


@pytest.mark.parametrize("similarity", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_bring_pairs_at_the_threshold_together(similarity: float):
    bands = bands_for(similarity)
    assert SLOTS % bands == 0
    found = 1 - (1 - similarity ** (SLOTS // bands)) ** bands
    assert found >= 0.95 or bands == SLOTS


SCRIPT = """
from tasks.validate.duplicates import Conversation, NearDuplicates
rows = [Conversation(f"{n:032x}", f"{n:032x}", " ".join(f"w{(n * k) % 97}" for k in range(40 + n % 3)))
        for n in range(1, 400)]
print(NearDuplicates(0.5).first_alike(rows))
"""


def test_another_process_with_another_hash_seed_finds_the_same():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert b"0000" in outputs.pop()


@settings(max_examples=50)
@given(st.lists(st.text(max_size=40), max_size=8))
def test_an_equal_text_is_always_found_and_the_first_named(texts: list[str]):
    rows = [said(n, text) for n, text in enumerate(texts, 1)]
    copies = [said(n + 100, text) for n, text in enumerate(texts, 1)]
    found = alike(*rows, *copies)
    for row, of_row, of_copy in zip(rows, found[: len(rows)], found[len(rows) :], strict=True):
        assert of_copy == ((of_row or row.prompt_id) if row.said.strip() else None)


@given(st.text(), st.text())
def test_words_of_two_lines_are_the_words_of_each(one: str, other: str):
    assert words_of(f"{one}\n{other}") == [*words_of(one), *words_of(other)]
