"""A conversation is one turn per answer to regenerate; equal beginnings have equal ids; results are never misnamed."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prompts.given import assistant, kept, reason, system, tool, turns, user


def result(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **more}


def messages(*given_messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(given_messages), **more}


def calls(*named: tuple[str | None, str]) -> dict[str, Any]:
    made = [{"function": {"name": name}, **({"id": call_id} if call_id else {})} for call_id, name in named]
    return {"role": "assistant", "content": None, "tool_calls": made}


def test_each_answer_is_a_turn_with_what_is_new_before_it():
    row = messages(system("S"), user("a"), assistant(), user("b"), user("c"), assistant(), user("d"))
    assert turns(row) == [[system("S"), user("a")], [user("b"), user("c")], [user("d")]]


def test_a_trailing_answer_asks_for_nothing_more():
    assert turns(messages(user("a"), assistant())) == turns(messages(user("a"))) == [[user("a")]]


def test_answers_in_a_row_are_one_turn():
    assert turns(messages(user("a"), assistant(), assistant(), user("b"))) == [[user("a")], [user("b")]]


def test_a_conversation_is_cut_after_as_many_turns_as_the_recipe_says():
    row = messages(user("a"), assistant(), user("b"), assistant(), user("c"))
    assert turns(row, turns=2) == [[user("a")], [user("b")]]
    assert kept(row, turns=2).turns == kept(row).turns[:2]
    assert turns(row, split="benchmark") == [[user("a")]]
    assert kept(row, turns=1).user_turns == ("a", "b", "c")


def test_a_fault_beyond_the_cut_still_rejects_the_row():
    assert reason(messages(user("a"), assistant(), user(" ")), turns=1) == "empty_content"


def test_an_id_is_the_hash_of_the_parent_the_new_messages_and_the_tools():
    function = {"name": "f"}
    found = kept(messages(user("caf\u00e9\r\n"), assistant(), user("b"), tools=[function]))
    declared = [{"type": "function", "function": function}]
    parent = None
    for turn, new in zip(found.turns, ([user("caf\u00e9\r\n")], [user("b")]), strict=True):
        text = json.dumps([parent, new, declared], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert turn.prompt_id == hashlib.sha256(text.encode()).hexdigest()[:32]
        parent = turn.prompt_id
    assert (found.root_id, found.last_id) == (found.turns[0].prompt_id, parent)


def test_an_id_does_not_depend_on_the_row_around_it():
    one = kept(messages(user("a"), assistant("x"), user("b"), id="1", source="y"))
    other = kept({"messages": [{"content": "a", "role": "user"}, assistant("z"), user("b"), assistant()]})
    assert one.turns == other.turns


def test_equal_beginnings_have_equal_ids_and_other_tools_do_not():
    one = kept(messages(user("a"), assistant(), user("b")))
    other = kept(messages(user("a"), assistant(), user("c")))
    assert one.root_id == other.root_id
    assert one.last_id != other.last_id
    assert kept(messages(user("a"), tools=[{"name": "f"}])).root_id != one.root_id


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (messages(assistant(), user("a")), "starts_with_assistant"),
        (messages(system("S"), assistant(), user("a")), "starts_with_assistant"),
        (messages(system("S")), "turn_without_user"),
        (messages(user("a"), assistant(), system("S")), "turn_without_user"),
        (messages(user("a"), assistant(), system("S"), assistant()), "turn_without_user"),
        (messages(result("1"), user("a")), "tool_result_without_call"),
        (messages(user("a"), assistant(), result("1")), "tool_result_without_call"),
        (messages(user("a"), calls((None, "f")), result("1"), result("2")), "tool_result_without_call"),
        (messages(user("a"), calls((None, "f")), result("1", name="g")), "tool_result_without_call"),
        (messages(user("a"), calls(("1", "f")), result("1", tool_call_id="2")), "tool_result_without_call"),
        (messages(user("a"), calls(("1", "f")), result("1", tool_call_id="1", name="g")), "tool_result_without_call"),
        (messages(user("a"), calls(("1", "f")), user("b"), assistant(), result("1")), "tool_result_without_call"),
        (messages(user("a"), calls((None, "f"), (None, "g")), result("1"), assistant()), "tool_results_missing"),
        (messages(user("a"), calls((None, "f"), (None, "g")), result("1")), "tool_results_missing"),
    ],
)
def test_a_conversation_that_nobody_could_have_had_is_rejected(row: dict[str, Any], expected: str):
    assert reason(row) == expected


@pytest.mark.parametrize(
    ("recorded", "results", "named"),
    [
        ([(None, "f")], [result("1")], [tool("f", "1")]),
        ([(None, "f")], [result("")], [tool("f", "")]),
        ([(None, "f"), (None, "g")], [result("1"), result("2")], [tool("f", "1"), tool("g", "2")]),
        (
            [("x", "f"), ("y", "g")],
            [result("2", tool_call_id="y"), result("1", tool_call_id="x")],
            [tool("g", "2"), tool("f", "1")],
        ),
        ([(None, "f"), (None, "g")], [result("2", name="g"), result("1", name="f")], [tool("g", "2"), tool("f", "1")]),
        ([("x", "f"), ("y", "g")], [result("2", tool_call_id="y")], [tool("g", "2")]),
        ([], [result("1", name="f")], [tool("f", "1")]),
    ],
)
def test_a_result_is_named_after_the_call_it_answered(recorded: Any, results: list[Any], named: list[Any]):
    assert turns(messages(user("a"), calls(*recorded), *results, assistant())) == [[user("a")], named]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
TALKS = st.lists(st.builds(user, TEXTS) | st.just(assistant()), max_size=8).map(lambda said: [user("first"), *said])


@given(TALKS)
def test_the_turns_together_are_all_that_the_user_says_character_by_character(talk: list[dict[str, Any]]):
    found = kept({"messages": talk})
    said = [message["content"] for message in talk if message["role"] == "user"]
    assert list(found.user_turns) == said
    assert [message["content"] for turn in found.turns for message in json.loads(turn.messages)] == said
    for start in range(1, len(talk)):
        if talk[start]["role"] == "assistant":
            before = kept({"messages": talk[: start + 1]})
            assert found.turns[: len(before.turns)] == before.turns


def called_with(*arguments: Any) -> dict[str, Any]:
    """An assistant's message with several calls of one function."""
    functions = [{"name": "f", "arguments": one} for one in arguments]
    return {"role": "assistant", "content": None, "tool_calls": [{"function": function} for function in functions]}


def test_results_of_one_function_called_several_times_keep_what_theirs_was_called_with():
    made = called_with('{"b": 1,  "a": [2]}', {"a": "\u00fc"})
    (_, new) = turns(messages(user("a"), made, result("1"), result("2")))
    assert new == [tool("f", "1") | {"arguments": '{"a":[2],"b":1}'}, tool("f", "2") | {"arguments": '{"a":"\u00fc"}'}]


@pytest.mark.parametrize("arguments", [None, "", "{", "[1]", 3, '{"a": NaN}', '{"a": "\\ud800"}'])
def test_arguments_that_cannot_be_told_are_not_recorded(arguments: Any):
    (_, new) = turns(messages(user("a"), called_with(arguments, {}), result("1"), result("2")))
    assert new == [tool("f", "1"), tool("f", "2") | {"arguments": "{}"}]


def test_the_name_tells_whose_a_single_result_is():
    both = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": n}} for n in "fg"]}
    (_, new) = turns(messages(user("a"), called_with({"a": 1}), result("1")))
    assert new == [tool("f", "1")]
    (_, new) = turns(messages(user("a"), both, result("1"), result("2")))
    assert new == [tool("f", "1"), tool("g", "2")]
