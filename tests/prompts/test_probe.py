"""A dataset that changed its shape stops with the difference; single odd rows and columns of no use do not."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import PromptSourceError
from tests.prompts.given import assistant, rows_of, user


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


GOOD = {"messages": [user("Hi"), assistant()]}


@pytest.mark.parametrize(
    ("adapter", "rows", "difference"),
    [
        ("opencodeinstruct", [{"prompt": "x"}], "input: expected text, missing"),
        (
            "opencodeinstruct",
            [{"input": ["x"]}, {"input": 5}],
            "input: expected text, found a list of text or a number",
        ),
        ("ultrachat", [{"messages": "[]"}], "messages: expected a list of {content, role}, found text"),
        (
            "ultrachat",
            [{"messages": [{"from": "human", "value": "x"}]}],
            "messages: expected a list of {content, role}, found a list of {from, value}",
        ),
        (
            "sharegpt",
            [{"conversations": ["x"]}],
            "conversations: expected a list of {from, value} or {content, role}, found a list of text",
        ),
        ("swe_smith", [{"messages": {"a": 1}}], "messages: expected a list or text, found {a}"),
        ("mt_bench", [{"turns": [{"content": "x"}]}], "turns: expected a list of text, found a list of {content}"),
        ("glaive", [{"chat": "USER: x", "system": True}], "system: expected text, found a boolean"),
        ("ultrachat", [GOOD | {"tools": "[{}]"}], "tools: not expected, though it would change the prompt"),
        (
            "magicoder_evol",
            [{"instruction": "x", "system": "y"}],
            "system: not expected, though it would change the prompt",
        ),
    ],
)
def test_a_changed_shape_stops_with_the_difference(tmp_path: Path, adapter: str, rows: list[Any], difference: str):
    with pytest.raises(PromptSourceError) as caught:
        rows_of(tmp_path / "rows.jsonl", lines(*rows), adapter)
    assert difference in str(caught.value).splitlines()[1]
    assert f"dataset 'chat' (source {tmp_path}/rows.jsonl)" in str(caught.value)
    assert f"adapter {adapter!r}" in str(caught.value)


def test_all_differences_are_told_at_once(tmp_path: Path):
    with pytest.raises(PromptSourceError, match=r"(?s)chat: .*missing\n  system: .*number"):
        rows_of(tmp_path / "rows.jsonl", lines({"system": 1}), "glaive")


def test_single_odd_rows_are_no_difference(tmp_path: Path):
    content = b"\xff\n" + lines({}, {"messages": None}, {"messages": 5}, {"messages": []}, GOOD)
    assert len(rows_of(tmp_path / "rows.jsonl", content)) == 6


def test_columns_that_only_have_nulls_so_far_are_no_difference(tmp_path: Path):
    assert len(rows_of(tmp_path / "rows.jsonl", lines(*[{"messages": None}] * 20, GOOD))) == 21


def test_only_the_first_rows_are_looked_at(tmp_path: Path):
    assert len(rows_of(tmp_path / "rows.jsonl", lines(*[GOOD] * 20, *[{"text": "x"}] * 30))) == 50


def test_columns_that_are_not_read_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "eyas.prompts"):
        rows_of(tmp_path / "rows.jsonl", lines(GOOD | {"score": 1, "tools": []}))
    assert "columns that adapter jsonl does not read: ['score']" in caplog.text


def test_a_column_that_is_dropped_on_purpose_is_no_difference(tmp_path: Path):
    row = {"system": "Use marks.", "conversations": [{"from": "user", "value": "x"}]}
    assert len(rows_of(tmp_path / "rows.jsonl", lines(row), "openthoughts_114k")) == 1
