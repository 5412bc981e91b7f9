"""Glaive's flat strings are cut into turns, its declarations become tools, and its odd calls are read without eval."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.prompts.adapters.glaive import function_call
from tests.prompts.given import kept, reason, system, tool, turns, user

TIDE = {"name": "tide", "description": "Height {m}", "parameters": {"type": "object", "properties": {}}}
WIND = {"name": "wind", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}
OFFER = "You are a helpful assistant with access to the following functions. Use them if required"
CALL = """<functioncall> {"name": "wind", "arguments": '{"port": "O'Hara's Bay"}'}"""


def row(chat: str, declared: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    listed = "".join(json.dumps(tool, indent=4) + "\n" for tool in declared or [])
    return {"system": f"SYSTEM: {OFFER} -\n{listed}\n" if declared else None, "chat": chat}


def chat(*blocks: str) -> str:
    return "\n\n\n".join(blocks)


def test_a_call_and_its_result_are_named():
    given_row = row(
        chat(
            "USER: Wind at O'Hara's Bay?\nNow.",
            f"ASSISTANT: {CALL} <|endoftext|>",
            'FUNCTION RESPONSE: {"kn": 9}',
            "ASSISTANT: 9 knots. <|endoftext|>",
            "USER: Thanks!",
            "ASSISTANT: Welcome! <|endoftext|>",
            "",
        ),
        [TIDE, WIND],
    )
    assert turns(given_row, "glaive") == [
        [system(OFFER), user("Wind at O'Hara's Bay?\nNow.")],
        [tool("wind", '{"kn": 9}')],
        [user("Thanks!")],
    ]
    assert [declared["function"] for declared in json.loads(kept(given_row, "glaive").tools or "")] == [TIDE, WIND]


def test_a_system_text_without_functions_stays_as_it_is():
    plain = {"system": "SYSTEM: You are helpful - with no access to functions.", "chat": "USER: Hi\n\n\nASSISTANT: Yes"}
    assert turns(plain, "glaive") == [[system("You are helpful - with no access to functions."), user("Hi")]]
    assert kept(plain, "glaive").tools is None


def test_the_end_marker_is_syntax_only_at_the_end_of_an_assistants_turn():
    text = "What does <|endoftext|> mean? <|endoftext|>"
    assert turns(row(f"USER: {text}"), "glaive") == [[user(text)]]


def test_line_ends_inside_a_turn_are_kept():
    assert turns(row("USER: a\r\n\r\nb\n\nc\r\n\r\n\r\nASSISTANT: d"), "glaive") == [[user("a\r\n\r\nb\n\nc")]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty_content"),
        ("Hello there", "unknown_role"),
        ("SYSTEM: x\n\n\nUSER: Hi", "unknown_role"),
        ("ASSISTANT: Hi\n\n\nUSER: Hi", "starts_with_assistant"),
        ("USER: \n\n\nASSISTANT: Hi", "empty_content"),
        ("USER: Hi\n\nASSISTANT: Hi", "ambiguous_turns"),
        ("USER: Hi\n\n\nFUNCTION RESPONSE: 1", "tool_result_without_call"),
        ("USER: Hi\n\n\nASSISTANT: <functioncall> wind()", "invalid_function_call"),
        ('USER: Hi\n\n\nASSISTANT: <functioncall> {"name": "wind", "arguments": \'{oops}\'}', "invalid_function_call"),
    ],
)
def test_a_chat_that_cannot_be_cut_for_certain_is_rejected(text: str, expected: str):
    assert reason(row(text), "glaive") == expected


def test_declarations_that_are_no_json_are_rejected():
    assert reason({"system": f"SYSTEM: {OFFER} -\n{{'name': 'tide'}}", "chat": "USER: Hi"}, "glaive") == "invalid_tools"
    assert reason({"system": 5, "chat": "USER: Hi"}, "glaive") == "content_not_text"


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("""{"name": "f", "arguments": '{"a": "O'Hara"}'}""", "f", {"a": "O'Hara"}),
        (r"""{"name": "f", "arguments": '{"a": "it\'s"}'}""", "f", {"a": "it's"}),
        ("""{"name": "f", "arguments": '{"a": "he said \\"no\\""}'}""", "f", {"a": 'he said "no"'}),
        ("""{"name": "f", "arguments": '{"a": "}, '"}'}""", "f", {"a": "}, '"}),
        ("""{"name": "f", "arguments": {"a": [1, 2]}}""", "f", {"a": [1, 2]}),
        ("""{"name": "f", "arguments": "{\\"a\\": 1}"}""", "f", {"a": 1}),
        ("""{"name": "f", "arguments": '{}'}""", "f", {}),
        ("""{ "name" : "f" }""", "f", {}),
        ("""{"name": "f", "arguments": '{"a": "two\nlines"}'}""", "f", {"a": "two\nlines"}),
    ],
)
def test_a_call_is_read_however_its_arguments_are_quoted(text: str, name: str, arguments: Any):
    assert function_call(f" {text}\n") == (name, arguments)


@pytest.mark.parametrize("text", ["", "f()", '{"name": f}', '{"arguments": {}}', """{"name": "f", "arguments": '{'}"""])
def test_what_is_no_call_is_refused(text: str):
    with pytest.raises(ValueError, match=r".+"):
        function_call(text)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES,
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=5,
)


@given(name=NAMES, arguments=st.dictionaries(NAMES, VALUES, max_size=4))
def test_every_call_in_single_quotes_comes_back(name: str, arguments: dict[str, Any]):
    quoted = json.dumps(arguments, ensure_ascii=False)
    assert function_call(f"""{{"name": {json.dumps(name)}, "arguments": '{quoted}'}}""") == (name, arguments)


@given(st.text())
def test_any_text_is_a_call_or_a_value_error(text: str):
    for candidate in (text, f'{{"name": "f", "arguments": {text}}}', f"""{{"name": "f", "arguments": '{text}'}}"""):
        try:
            assert function_call(candidate)[0]
        except ValueError:
            continue
