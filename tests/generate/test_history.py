"""The next turn's request is the target's own answer and the recorded results of its calls, or a named fault."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.format import Fault, Reply, ToolCall
from tasks.generate.history import first_request, next_request, texts_of

TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
BEFORE: dict[str, Any] = {"messages": [{"role": "user", "content": "Look"}], "tools": TOOLS}
USER = {"role": "user", "content": "Go on"}


def call(name: str, number: int, arguments: str = "{}") -> ToolCall:
    return ToolCall(name, arguments, f"functions.{name}:{number}")


def result(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": content}


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
    messages = asked(said(ToolCall("ls", "{}"), ToolCall("ls", "{}")), result("ls", "1"), result("ls", "2"))
    assert [made["id"] for made in messages[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [tool["tool_call_id"] for tool in messages[2:]] == ["call_0", "call_1"]


@pytest.mark.parametrize(
    ("calls", "names"),
    [(["ls"], ["cat"]), (["ls", "ls"], ["ls"]), (["ls"], ["ls", "ls"]), (["ls", "cat"], ["cat", "rm"])],
)
def test_calls_and_results_that_do_not_match_one_to_one_give_both_lists(calls: list[str], names: list[str]) -> None:
    reply = said(*(call(name, place) for place, name in enumerate(calls)))
    found = fault(reply, *(result(name, "") for name in names))
    assert found == ("tool_call_mismatch", f"the answer calls {calls}; results of {names} are recorded")


def test_a_result_without_a_call_is_a_missing_call() -> None:
    assert fault(said(content="No need."), result("ls", "a"), USER) == (
        "tool_call_missing",
        "results of ['ls'] are recorded, the answer calls nothing",
    )


def test_a_call_without_a_result_is_a_missing_result() -> None:
    assert fault(said(call("ls", 0)), USER).reason == "tool_result_missing"


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
