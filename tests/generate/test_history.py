"""The next turn's request is the target's own answer and the recorded results of its calls, or a named fault."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.format import Fault, Reply, ToolCall
from tasks.generate.history import first_request, next_request, readable, texts_of
from tests.formats.bound import bound

TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
BEFORE: dict[str, Any] = {"messages": [{"role": "user", "content": "Look"}], "tools": TOOLS}
USER = {"role": "user", "content": "Go on"}


def call(name: str, number: int, arguments: str = "{}") -> ToolCall:
    return ToolCall(name, arguments, f"functions.{name}:{number}")


def result(name: str, content: str, arguments: str | None = None) -> dict[str, Any]:
    told = {} if arguments is None else {"arguments": arguments}
    return {"role": "tool", "name": name, "content": content, **told}


def said(*calls: ToolCall, content: str = "", reasoning: str = "") -> Reply:
    return Reply(reasoning, content, calls)


def asked(reply: Reply, *new: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of the next request."""
    request = next_request(BEFORE, reply, new, TOOLS)
    assert not isinstance(request, Fault), request
    assert request["tools"] == TOOLS
    return request["messages"]


def fault(reply: Reply, *new: dict[str, Any]) -> Fault:
    request = next_request(BEFORE, reply, new, TOOLS)
    assert isinstance(request, Fault), request
    return request


def test_an_answer_becomes_the_history_of_the_next_turn() -> None:
    messages = asked(said(content="It is 4.", reasoning="Two and two."), USER)
    assert messages == [
        BEFORE["messages"][0],
        {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."},
        USER,
    ]


def test_the_request_before_is_not_changed() -> None:
    before = json.dumps(BEFORE)
    asked(said(content="A"), USER)
    assert json.dumps(BEFORE) == before


def test_a_result_goes_to_the_call_that_the_target_made_now() -> None:
    _, assistant, tool, user = asked(said(call("ls", 3, '{"path":  "."}')), result("ls", "a.txt"), USER)
    assert assistant["tool_calls"] == [
        {"id": "functions.ls:3", "type": "function", "function": {"name": "ls", "arguments": '{"path":  "."}'}}
    ]
    assert tool == {"role": "tool", "name": "ls", "content": "a.txt", "tool_call_id": "functions.ls:3"}
    assert user == USER


def test_results_of_parallel_calls_are_matched_by_name_and_then_by_order() -> None:
    reply = said(call("cat", 0), call("ls", 1), call("cat", 2))
    tools = asked(reply, result("ls", "L"), result("cat", "first"), result("cat", "second"))[2:]
    assert [(tool["tool_call_id"], tool["content"]) for tool in tools] == [
        ("functions.cat:0", "first"),
        ("functions.ls:1", "L"),
        ("functions.cat:2", "second"),
    ]


def test_calls_of_families_without_ids_get_one_by_their_place() -> None:
    read = readable(said(ToolCall("ls", "{}"), ToolCall("ls", "{}")), bound("qwen3", "qwen-3").format, TOOLS)
    assert isinstance(read, Reply)
    messages = asked(read, result("ls", "1"), result("ls", "2"))
    assert [made["id"] for made in messages[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [tool["tool_call_id"] for tool in messages[2:]] == ["call_0", "call_1"]


@pytest.mark.parametrize("arguments", ['{"path": ', "[1]", "3", "not JSON", '{"a": NaN}'])
def test_a_call_that_no_tool_could_have_run_ends_the_conversation(arguments: str) -> None:
    read = readable(said(ToolCall("ls", arguments)), bound("qwen3", "qwen-3").format, TOOLS)
    assert isinstance(read, Fault)
    assert (read.reason, read.detail[:11]) == ("tool_call_unreadable", "call 0 (ls)")


def test_a_call_without_a_name_ends_the_conversation() -> None:
    read = readable(said(ToolCall("", "ls(.)")), bound("qwen3", "qwen-3").format, TOOLS)
    assert read == ("tool_call_unreadable", "call 0 (no name): 'ls(.)' is not of the form in which qwen3 calls")


@pytest.mark.parametrize(
    ("calls", "names", "reason", "left"),
    [
        (["ls"], ["cat"], "tool_call_mismatch", ""),
        (["ls", "cat"], ["cat", "rm"], "tool_call_mismatch", ""),
        (["ls", "ls"], ["ls"], "tool_result_missing", ": none for ['ls']"),
        (["ls", "cat"], ["cat"], "tool_result_missing", ": none for ['ls']"),
        (["ls"], ["ls", "ls"], "tool_call_missing", ": no call for ['ls']"),
        (["cat"], ["ls", "cat"], "tool_call_missing", ": no call for ['ls']"),
    ],
)
def test_calls_and_results_that_do_not_match_one_to_one_give_both_lists(
    calls: list[str], names: list[str], reason: str, left: str
) -> None:
    reply = said(*(call(name, place) for place, name in enumerate(calls)))
    found = fault(reply, *(result(name, "") for name in names))
    assert found == (reason, f"the answer calls {calls}; results of {names} are recorded{left}")


def test_a_result_without_a_call_is_a_missing_call() -> None:
    assert fault(said(content="No need."), result("ls", "a"), USER) == (
        "tool_call_missing",
        "the answer calls nothing; results of ['ls'] are recorded: no call for ['ls']",
    )


def test_a_call_without_a_result_is_a_missing_result() -> None:
    assert fault(said(call("ls", 0)), USER).reason == "tool_result_missing"


def matched(calls: list[str], recorded: list[str | None]) -> list[str] | Fault:
    """Which result each of several calls of one function gets: results are named by their place."""
    reply = said(*(call("cat", place, arguments) for place, arguments in enumerate(calls)))
    new = [result("cat", str(place), arguments) for place, arguments in enumerate(recorded)]
    request = next_request(BEFORE, reply, new, TOOLS)
    if isinstance(request, Fault):
        return request
    tools = [message for message in request["messages"] if message["role"] == "tool"]
    assert all(tool.keys() == {"role", "name", "content", "tool_call_id"} for tool in tools)
    return [tool["content"] for tool in tools]


def test_calls_of_one_function_in_another_order_are_matched_by_their_arguments() -> None:
    assert matched(['{ "f":  "b"}', '{"f": "a"}'], ['{"f":"a"}', '{"f":"b"}']) == ["1", "0"]
    assert matched(['{"y": 2, "x": 1}', '{"x": 0}'], ['{"x":0}', '{"x":1,"y":2}']) == ["1", "0"]


def test_equal_calls_of_one_function_take_their_results_in_order() -> None:
    assert matched(['{"f": 1}'] * 3, ['{"f":1}'] * 3) == ["0", "1", "2"]


def test_the_last_call_without_an_equal_one_takes_the_last_result() -> None:
    assert matched(['{"f": "b"}', '{"f": "./a"}'], ['{"f":"a"}', '{"f":"b"}']) == ["1", "0"]


def test_calls_whose_arguments_were_not_recorded_take_their_results_in_order() -> None:
    assert matched(['{"f": 2}', '{"f": 1}'], [None, None]) == ["0", "1"]


def test_several_calls_without_an_equal_one_end_the_conversation() -> None:
    found = matched(['{"f": "x"}', '{"f": 1}', '{"f": "y"}'], ['{"f":"a"}', '{"f":"b"}', '{"f":1}'])
    assert isinstance(found, Fault)
    assert found.reason == "tool_results_ambiguous"
    assert '\'{"f": "x"}\', \'{"f": "y"}\'' in found.detail
    assert '\'{"f":"a"}\', \'{"f":"b"}\'' in found.detail


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_any_order_of_the_same_calls_gets_the_results_of_their_arguments(numbers: list[int], random: Any) -> None:
    shuffled = numbers[:]
    random.shuffle(shuffled)
    found = matched([f'{{"n": {one}}}' for one in shuffled], [f'{{"n":{one}}}' for one in numbers])
    assert not isinstance(found, Fault)
    assert [numbers[int(place)] for place in found] == shuffled
    assert sorted(found) == [str(place) for place in range(len(numbers))]


def test_a_result_after_another_message_answers_no_call() -> None:
    assert fault(said(call("ls", 0)), result("ls", "1"), USER, result("ls", "2")).reason == "tool_call_mismatch"


def test_a_first_turn_with_a_result_has_no_call_for_it() -> None:
    found = first_request([result("ls", "a"), USER], None)
    assert isinstance(found, Fault)
    assert found.reason == "tool_call_missing"


def test_a_request_without_tools_has_no_such_key() -> None:
    assert first_request([USER], None) == {"messages": [USER]}
    assert first_request([USER], []) == {"messages": [USER]}


def test_every_text_that_reaches_the_prompt_is_looked_at() -> None:
    request = next_request(
        BEFORE, said(call("ls", 0, "ARGS"), content="C", reasoning="R"), [result("ls", "OUT")], TOOLS
    )
    assert not isinstance(request, Fault)
    assert {"Look", "ARGS", "C", "R", "OUT", "ls", "parameters"} <= set(texts_of(request))


NAMES = st.lists(st.sampled_from(["ls", "cat", "rm"]), max_size=6)


@given(calls=NAMES, results=NAMES)
def test_results_are_spliced_if_and_only_if_they_are_those_of_the_calls(calls: list[str], results: list[str]) -> None:
    reply = said(*(call(name, place) for place, name in enumerate(calls)))
    new = [result(name, str(place)) for place, name in enumerate(results)]
    request = next_request(BEFORE, reply, [*new, USER], TOOLS)
    assert isinstance(request, dict) == (Counter(calls) == Counter(results))
    if isinstance(request, dict):
        tools = [message for message in request["messages"] if message["role"] == "tool"]
        assert [tool["name"] for tool in tools] == calls
        for name in set(calls):
            contents = [tool["content"] for tool in tools if tool["name"] == name]
            assert contents == [str(place) for place, recorded in enumerate(results) if recorded == name]
