"""Every dataset's shape becomes a script of system, tools and users; the dataset's own answers are never in it."""

import json
from typing import Any, get_args

import pytest

from schemas.sections import DatasetSpec
from tasks.prompts.adapters import ADAPTERS, PROMPT_COLUMN, adapter_of
from tests.prompts.given import assistant, dataset, kept, reason, system, tool, turns, user

ANSWER = "This answer belongs to the dataset."


def said(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"from": speaker, "value": text} for speaker, text in pairs]


TIDES = [{"name": "tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}]
SMITH = [
    {"role": "system", "content": "You may use a shell.", "agent": "main", "message_type": "system_prompt"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Mend "}, {"type": "text", "text": "it.\r\n"}],
        "agent": "main",
    },
    {
        "role": "assistant",
        "content": ANSWER,
        "thought": ANSWER,
        "action": "ls",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
        ],
    },
    {"role": "tool", "content": [{"type": "text", "text": "a.py"}], "tool_call_ids": ["t1"]},
    {"role": "assistant", "content": ANSWER, "tool_calls": None},
    {"role": "user", "content": "Go on."},
]

# adapter, row, its key, what is new in each turn
SHAPES: list[tuple[str, dict[str, Any], str, list[list[dict[str, str]]]]] = [
    (
        "jsonl",
        {"id": "q-7", "messages": [system("Be brief."), user("Hi"), assistant(ANSWER), user("Bye")]},
        "q-7",
        [[system("Be brief."), user("Hi")], [user("Bye")]],
    ),
    (
        "glaive_sharegpt",
        {
            "conversations": said(
                ("human", "High water?"),
                ("function_call", '{"name": "tide", "arguments": {"port": "Bergen"}}'),
                ("observation", '{"m": 1.2}'),
                ("gpt", ANSWER),
                ("human", "Thanks"),
                ("gpt", ANSWER),
            ),
            "tools": json.dumps(TIDES),
        },
        "line 1",
        [[user("High water?")], [tool("tide", '{"m": 1.2}')], [user("Thanks")]],
    ),
    (
        "opencodeinstruct",
        {"id": "9f", "input": "Sort a list.\n\n**Input:** one", "output": ANSWER, "average_test_score": "0.9"},
        "9f",
        [[user("Sort a list.\n\n**Input:** one")]],
    ),
    (
        "magicoder_oss",
        {"lang": "c", "raw_index": 4, "index": 12, "openai_fingerprint": None, "problem": "A\r\nB", "solution": ANSWER},
        "12",
        [[user("A\r\nB")]],
    ),
    ("magicoder_evol", {"instruction": "Match a date.", "response": ANSWER}, "line 1", [[user("Match a date.")]]),
    (
        "mixture_of_thoughts",
        {"messages": [user("3+4?"), assistant("<think>\nx\n</think>\n\n7")], "num_tokens": 9, "source": "s"},
        "line 1",
        [[user("3+4?")]],
    ),
    (
        "openthoughts_114k",
        {"system": "Put thoughts into marks.", "conversations": said(("user", "Why?"), ("assistant", ANSWER))},
        "line 1",
        [[user("Why?")]],
    ),
    (
        "openthoughts3",
        {"difficulty": None, "domain": "code", "conversations": said(("human", "How?"), ("gpt", "<think>cut"))},
        "line 1",
        [[user("How?")]],
    ),
    (
        "ultrachat",
        {"prompt": "River?", "prompt_id": "ab", "messages": [user("River?"), assistant(), user("More?"), assistant()]},
        "ab",
        [[user("River?")], [user("More?")]],
    ),
    (
        "sharegpt",
        {
            "id": "abc_17",
            "conversations": said(
                ("system", "Be kind"),
                ("human", "<p>caf\u00e9 &amp; tea</p>"),
                ("bing", ANSWER),
                ("user", "twice"),
                ("human", "in a row"),
                ("chatgpt", None),
            ),
        },
        "abc_17",
        [[system("Be kind"), user("<p>caf\u00e9 &amp; tea</p>")], [user("twice"), user("in a row")]],
    ),
    ("sharegpt", {"conversations": [user("Hi"), assistant()], "system": "S"}, "line 1", [[system("S"), user("Hi")]]),
    ("perfectblend", {"conversations": said(("human", "only asked")), "source": "s"}, "line 1", [[user("only asked")]]),
    (
        "swe_agent",
        {
            "instance_id": "acme__w-1",
            "trajectory": [
                {"role": "system", "system_prompt": "SETTING", "text": None, "mask": False, "cutoff_date": "2023"},
                {"role": "user", "system_prompt": None, "text": "Solve it", "mask": False, "cutoff_date": None},
                {"role": "ai", "system_prompt": None, "text": ANSWER, "mask": True, "cutoff_date": None},
                {"role": "user", "system_prompt": None, "text": "a.py", "mask": False, "cutoff_date": None},
                {"role": "ai", "system_prompt": None, "text": ANSWER, "mask": False, "cutoff_date": None},
            ],
        },
        "acme__w-1",
        [[system("SETTING"), user("Solve it")], [user("a.py")]],
    ),
    (
        "swe_smith",
        {"messages": json.dumps(SMITH), "traj_id": "w.x1", "resolved": True},
        "w.x1",
        [[system("You may use a shell."), user("Mend it.\r\n")], [tool("bash", "a.py")], [user("Go on.")]],
    ),
    (
        "deepswe_kimi",
        {
            "messages": [
                system("Use <function=name> blocks."),
                user("Fix w.py"),
                assistant("<function=bash>\n</function>"),
                user("Execution output of [bash]:\nw.py"),
                assistant("<function=finish>\n</function>"),
            ]
        },
        "line 1",
        [[system("Use <function=name> blocks."), user("Fix w.py")], [user("Execution output of [bash]:\nw.py")]],
    ),
    ("human_eval", {"task_id": "HumanEval/0", "prompt": "x = {'{code}': 1}\n\n"}, "HumanEval/0", [
        [user("Complete the following Python function.\n\n```python\nx = {'{code}': 1}\n```")]
    ]),
    ("mt_bench", {"question_id": 81, "turns": ["First?", "Second?"]}, "81", [[user("First?")]]),
    ("prompt_column", {"id": "p", "prompt": "Ask", "completion": ANSWER}, "p", [[user("Ask")]]),
]  # fmt: skip


@pytest.mark.parametrize(("adapter", "row", "key", "expected"), SHAPES, ids=[shape[0] for shape in SHAPES])
def test_a_row_becomes_its_questions(adapter: str, row: dict[str, Any], key: str, expected: list[Any]):
    assert turns(row, adapter) == expected
    assert kept(row, adapter).source_key == key
    assert ANSWER not in str(kept(row, adapter))


def test_the_recipe_knows_exactly_these_adapters():
    assert set(get_args(DatasetSpec.model_fields["adapter"].annotation)) == {*ADAPTERS, PROMPT_COLUMN}
    assert {shape[0] for shape in SHAPES} | {"glaive"} == {*ADAPTERS, PROMPT_COLUMN}


def test_a_prompt_column_is_the_one_that_the_recipe_names():
    assert turns({"question": "Q", "prompt": "P"}, "prompt_column", column="question") == [[user("Q")]]
    assert adapter_of(dataset(adapter="prompt_column", column="question")).reads == {"question", "id"}


@pytest.mark.parametrize("tools", [TIDES, json.dumps(TIDES), [{"type": "function", "function": TIDES[0]}]])
def test_tools_are_declared_as_openai_does(tools: Any):
    row = {"messages": [user("Hi")], "tools": tools}
    assert json.loads(kept(row).tools or "") == [{"type": "function", "function": TIDES[0]}]


@pytest.mark.parametrize("tools", [None, "", " ", "[]", []])
def test_no_tools_are_none(tools: Any):
    assert kept({"messages": [user("Hi")], "tools": tools}).tools is None


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ("[{", "invalid_tools"),
        ({"name": "f"}, "invalid_tools"),
        ([{"description": "nameless"}], "invalid_tools"),
        ([{"name": " "}], "invalid_tools"),
        (["f"], "invalid_tools"),
        ([{"type": "retrieval", "function": {"name": "f"}}], "invalid_tools"),
        ([{"name": "f", "default": float("nan")}], "invalid_tools"),
        ([{"name": "f", "description": "\ud83d"}], "lone_surrogate"),
        ("[" * 5000 + "]" * 5000, "invalid_tools"),
    ],
)
def test_tools_that_are_none_are_rejected(tools: Any, expected: str):
    assert reason({"messages": [user("Hi")], "tools": tools}) == expected


def test_tools_of_a_typed_column_whose_gaps_were_filled_are_rejected():
    filled = {"messages": [user("Hi")], "tools": [{"name": "f", "parameters": {"a": {"enum": None}}}]}
    assert reason(filled, columnar=True) == "tools_with_nulls"
    assert kept(filled).tools


@pytest.mark.parametrize(
    ("adapter", "column", "messages"),
    [
        (
            "sharegpt",
            "conversations",
            said(("human", "q"), ("function_call", "{}"), ("observation", "x"), ("gpt", "a")),
        ),
        ("sharegpt", "conversations", said(("tool", "x"))),
        ("glaive_sharegpt", "conversations", said(("human", "q"), ("assistant", "a"))),
        ("openthoughts3", "conversations", said(("user", "q"))),
        ("openthoughts_114k", "conversations", said(("human", "q"))),
        ("perfectblend", "conversations", said(("Human", "q"))),
        ("perfectblend", "conversations", said((None, "q"))),
        ("jsonl", "messages", [{"role": "observation", "content": "x"}, user("Hi")]),
        ("jsonl", "messages", [{"from": "human", "value": "Hi"}]),
        ("jsonl", "messages", [{"role": ["user"], "content": "Hi"}]),
        ("ultrachat", "messages", [{"role": "tool", "content": "x"}]),
        ("deepswe_kimi", "messages", [{"role": "developer", "content": "x"}]),
        ("swe_agent", "trajectory", [{"role": "assistant", "text": "x"}]),
        ("swe_smith", "messages", json.dumps([{"role": "ai", "content": "x"}])),
    ],
)
def test_an_unknown_role_is_never_mapped(adapter: str, column: str, messages: Any):
    assert reason({column: messages}, adapter) == "unknown_role"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, "no_messages"),
        ({"messages": None}, "no_messages"),
        ({"messages": []}, "no_messages"),
        ({"messages": ["Hi"]}, "message_not_object"),
        ({"messages": [user(None)]}, "content_not_text"),
        ({"messages": [user([{"type": "text", "text": "Hi"}])]}, "content_not_text"),
        ({"messages": [user("")]}, "empty_content"),
        ({"messages": [user(" \r\n")]}, "empty_content"),
        ({"messages": [user("Hi"), assistant(), user("")]}, "empty_content"),
        ({"messages": [system(""), user("Hi")]}, "empty_content"),
        ({"messages": [user("\ud83d")]}, "lone_surrogate"),
        ({"messages": [{**user("Hi"), "images": ["x"]}]}, "unknown_message_key"),
        ({"messages": [user("Hi"), {**assistant(), "tool_calls": "f()"}]}, "invalid_function_call"),
        ({"messages": [user("Hi"), {**assistant(), "tool_calls": [{"function": {}}]}]}, "invalid_function_call"),
        ({"messages": [user("Hi")], "system": "Be brief"}, "unread_column"),
    ],
)
def test_a_row_with_a_fault_is_rejected_whole(row: dict[str, Any], expected: str):
    assert reason(row) == expected


@pytest.mark.parametrize(
    ("adapter", "row", "expected"),
    [
        ("human_eval", {"task_id": "HumanEval/1"}, "content_not_text"),
        ("human_eval", {"prompt": "\n"}, "empty_content"),
        ("mt_bench", {"turns": []}, "no_messages"),
        ("mt_bench", {"turns": [{"content": "x"}]}, "content_not_text"),
        ("mt_bench", {"turns": ["\udc00"]}, "lone_surrogate"),
        ("opencodeinstruct", {"input": None}, "content_not_text"),
        ("prompt_column", {"text": "x"}, "content_not_text"),
        ("swe_smith", {"messages": "[{"}, "invalid_json"),
        ("swe_smith", {"messages": json.dumps([user([{"type": "image_url", "text": "x"}])])}, "content_not_text"),
        ("swe_smith", {"messages": json.dumps([{"role": "tool", "content": "x", "tool_call_ids": ["a", "b"]}])},
         "parallel_tool_results"),
        ("swe_agent", {"trajectory": [{"role": "system", "system_prompt": None, "text": "x"}]}, "content_not_text"),
        ("swe_agent", {"trajectory": ["x"]}, "message_not_object"),
        ("glaive_sharegpt", {"conversations": said(("human", "q"), ("function_call", "f("))}, "invalid_function_call"),
        ("glaive_sharegpt", {"conversations": said(("human", "q"), ("function_call", "[]"))}, "invalid_function_call"),
        ("glaive_sharegpt", {"conversations": said(("human", "q"), ("observation", "x"))}, "tool_result_without_call"),
        ("glaive_sharegpt", {"conversations": ["x"]}, "message_not_object"),
        ("sharegpt", {"conversations": said(("human", "q")), "tools": "[{}]"}, "unread_column"),
    ],
)  # fmt: skip
def test_faults_of_a_dataset_of_its_own(adapter: str, row: dict[str, Any], expected: str):
    assert reason(row, adapter) == expected


def test_a_message_key_without_a_value_changes_nothing():
    with_nulls = {**user("Hi"), "name": None, "tool_calls": None}
    assert kept({"messages": [with_nulls]}).root_id == kept({"messages": [user("Hi")]}).root_id


def test_arguments_of_any_type_are_not_looked_at():
    for arguments in ({"t": "2025"}, {"t": 5}, '{"t": 5}', "broken {", None):
        call = {"function": {"name": "clock", "arguments": arguments}}
        row = {
            "messages": [
                user("When?"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                tool("clock", "5"),
            ]
        }
        assert turns(row) == [[user("When?")], [tool("clock", "5")]]


def test_a_text_that_looks_like_a_type_stays_a_text():
    assert turns({"prompt": "created: timestamp[s], x: null"}, "prompt_column") == [
        [user("created: timestamp[s], x: null")]
    ]
