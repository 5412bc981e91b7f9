"""Why a count differs is named where the text shows it, and called unexplained where it does not."""

from typing import Any

import pytest

from tests.reconstruct.given import kimi, reason, said, verdict, verdicts


def counted(reasoning: str, content: str, ended: bool = True) -> int:
    """The number of ids of an answer with reasoning."""
    return sum(map(len, kimi().codec.encode([reasoning, content]))) + 1 + ended


@pytest.mark.parametrize(
    ("reasoning", "content", "off", "changes", "expected"),
    [
        ("x = 1", "Done", 1, {}, "trimmed_whitespace"),
        ("R\n", "\n\nA\n", 1, {}, "not_canonical"),  # no seam is bare
        ("R", "naïve 中", 2, {"finish_reason": "length"}, "cut_inside_character"),
        ("R", "cafe\u0301", -1, {}, "not_nfc"),
        ("R", "x" * 25_001, 1, {}, "long_run"),
        ("R", "say [EOS] or <|im_user|>", -2, {}, "marker_text_in_answer"),
        ("R", "A", -2, {}, "not_canonical"),
        ("R", "A", -3, {}, "unexplained"),
        ("R", "A " * 500, -9, {}, "not_canonical"),
        ("R", "A", 40, {}, "unexplained"),
    ],
)
def test_the_class_says_what_the_text_shows(
    reasoning: str, content: str, off: int, changes: dict[str, Any], expected: str
):
    ended = changes.get("finish_reason") != "length"
    row = verdict(said(reasoning, content, counted(reasoning, content, ended) + off, **changes))
    assert (reason(row), row.delta_class, row.delta) == (expected, expected, -off)


def test_a_provider_with_white_space_at_an_end_of_a_text_trims_none():
    bare = [said("x = 1", "Done", counted("x = 1", "Done") + 1, number=1)]
    assert [row.delta_class for row in verdicts(bare)] == ["trimmed_whitespace"]
    spaced = said("R\n", "A", counted("R\n", "A"), number=2)
    assert [row.delta_class for row in verdicts([*bare, spaced])] == ["not_canonical", "exact"]


def test_padded_tool_markers_are_seen():
    marked = " <|tool_calls_section_begin|>  <|tool_call_begin|> functions.ls:0 <|tool_call_argument_begin|> {} "
    marked += "<|tool_call_end|>  <|tool_calls_section_end|> "
    bare = kimi().codec.encode(["R", "functions.ls:0", "{}"])
    row = verdict(said("R ", marked, sum(map(len, bare)) + 7))
    assert reason(row) == "padded_markers"
