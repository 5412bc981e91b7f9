"""A training prompt that asks what a benchmark asks is found, however it is written; others are left in peace."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.overlap import RUN_WORDS, Asked, BenchmarkIndex, Overlap, words

QUESTION = "Compose an engaging travel blog post about a recent trip to Hawaii, highlighting cultural experiences!"
SHORT = "What's the capital of Norway?"


def prompt(*turns: str, dataset: str = "chat") -> Asked:
    return Asked(f"{dataset} k", " | ".join(turns), turns)


INDEX = BenchmarkIndex([prompt(QUESTION, dataset="bench"), prompt(SHORT, "And of Chad?", dataset="bench")])


@pytest.mark.parametrize(
    "text",
    [
        QUESTION,
        QUESTION.upper(),
        QUESTION.replace(" ", "\r\n\t"),
        QUESTION.replace(",", " -- ").replace("!", ""),
        QUESTION.replace("Compose", "Ｃｏｍｐｏｓｅ"),
        "Ｗhat’s the CAPITAL of Norway",
        "what\u200bs the capital of Norway",
    ],
)
def test_the_same_words_are_found(text: str):
    assert INDEX.overlap(prompt(text)) is not None


def test_an_overlap_names_the_benchmark_row():
    assert INDEX.overlap(prompt(SHORT.lower())) == Overlap("bench k", "the same words")


def test_a_run_of_thirteen_words_is_found_and_twelve_are_not():
    run = QUESTION.split()
    assert INDEX.overlap(prompt("Please, " + " ".join(run[:RUN_WORDS]) + " or else")) is not None
    assert INDEX.overlap(prompt("Please, " + " ".join(run[: RUN_WORDS - 1]) + " or else")) is None


def test_a_question_in_a_later_turn_is_found():
    assert INDEX.overlap(prompt("Hello there", SHORT)) is not None


def test_a_run_does_not_cross_turns():
    run = QUESTION.split()
    assert INDEX.overlap(prompt(" ".join(run[:7]), " ".join(run[7:]))) is not None  # all turns together are equal
    assert INDEX.overlap(prompt("So: " + " ".join(run[:7]), " ".join(run[7:]))) is None


def test_a_later_turn_of_a_benchmark_alone_is_no_overlap():
    assert INDEX.overlap(prompt("And of Chad?")) is None


def test_prompts_without_words_are_alike_only_if_they_are_the_same():
    index = BenchmarkIndex([prompt("???", dataset="bench")])
    assert index.overlap(prompt("!!!")) is None
    assert index.overlap(prompt("???")) is not None


@given(st.text())
def test_words_do_not_depend_on_case_punctuation_or_composition(text: str):
    found = words(text)
    assert words(" ".join(found)) == words(" ".join(words(" ".join(found))))
    assert words(f"  {text}!?\n") == found
    assert words(unicodedata.normalize("NFC", text)) == words(unicodedata.normalize("NFD", text))


@given(st.lists(st.text("abc xyz", min_size=1), min_size=1), st.text("abc xyz", min_size=1))
def test_every_benchmark_prompt_overlaps_with_itself(texts: list[str], wrapping: str):
    index = BenchmarkIndex(prompt(text, dataset="bench") for text in texts)
    assert all(index.overlap(prompt(text)) for text in texts)
    long = [text for text in texts if len(words(text)) >= RUN_WORDS]
    assert all(index.overlap(prompt(f"{wrapping} {text} {wrapping}")) for text in long)
