"""Every line of a dataset is a prompt or a rejected row with its reason; bytes are never changed or guessed."""

import hashlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.prompts import PROMPTS
from schemas.sections import DatasetSpec
from tasks.prompts.adapters import ADAPTERS, ROLES, Prompt, Rejected, parse_rows
from tasks.prompts.task import prompt_tables, quarantine_table


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def line(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"messages": list(messages), **more}).encode()


def parse(content: bytes, adapter: str = "jsonl") -> list[Prompt | Rejected]:
    return list(parse_rows(content, "chat", adapter))


def only(content: bytes, adapter: str = "jsonl") -> Prompt:
    (row,) = parse(content, adapter)
    assert isinstance(row, Prompt), row
    return row


def reason(content: bytes, adapter: str = "jsonl") -> str:
    (row,) = parse(content, adapter)
    assert isinstance(row, Rejected), row
    assert row.raw == content.removesuffix(b"\n")
    return row.reason


def test_a_prompt_keeps_its_id_and_its_messages():
    row = only(line({"role": "system", "content": "Be brief."}, user("Hi"), id="q-7") + b"\n")
    assert row.source_key == "q-7"
    assert json.loads(row.messages) == [{"role": "system", "content": "Be brief."}, user("Hi")]
    assert row.user_turns == ("Hi",)


def test_a_row_without_an_id_is_known_by_its_line():
    first, second = parse(line(user("a")) + b"\n" + line(user("b"), id="") + b"\n")
    assert (first.source_key, second.source_key) == ("line 1", "line 2")


def test_prompt_id_is_the_hash_of_the_messages_and_not_of_the_row():
    row = only(line(user("Hi"), id="x", source="y"))
    assert row.prompt_id == hashlib.sha256(row.messages.encode()).hexdigest()[:32]
    assert row.prompt_id == only(b'{"messages": [{"content":"Hi",  "role":"user"}]}\r\n').prompt_id


def test_line_ends_and_marks_inside_a_content_are_kept():
    text = "def f():\r\n\treturn 1\r\n\u2028 cafe\u0301 \ufffd \x00 👩‍👩‍👧‍👦 🇨🇭"
    assert only(line(user(text)) + b"\r\n").user_turns == (text,)


def test_a_line_separator_of_unicode_does_not_end_a_line():
    raw = '{"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}\n'.encode()
    assert only(raw).user_turns == ("a\u2028b\x85c",)


def test_a_byte_order_mark_is_no_content():
    assert only(b"\xef\xbb\xbf" + line(user("Hi")) + b"\n").user_turns == ("Hi",)


def test_a_whole_last_line_needs_no_line_feed():
    assert only(line(user("Hi"))).user_turns == ("Hi",)


def test_a_torn_last_line_is_rejected_alone():
    good, torn = parse(line(user("Hi")) + b"\n" + line(user("Hello"))[:-9])
    assert isinstance(good, Prompt)
    assert isinstance(torn, Rejected)
    assert torn.reason == "torn_last_line"


def test_a_last_line_torn_inside_a_character_is_a_torn_line():
    assert reason('{"messages": [{"role": "user", "content": "caf\u00e9'.encode()[:-1]) == "torn_last_line"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"messages": [{"role": "user", "content": "\xff"}]}\n', "invalid_utf8"),
        (b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}\n', "invalid_utf8"),
        (b'{"messages": \n', "invalid_json"),
        (b"[" * 100_000 + b"\n", "invalid_json"),
        (b'{"id": ' + b"9" * 5000 + b"}\n", "invalid_json"),
        (b"  \t\n", "blank_line"),
        (b'["messages"]\n', "not_an_object"),
        (b"{}\n", "no_messages"),
        (b'{"messages": null}\n', "no_messages"),
        (line() + b"\n", "no_messages"),
        (line("Hi") + b"\n", "message_not_object"),
        (line({"role": "observation", "content": "x"}, user("Hi")) + b"\n", "unknown_role"),
        (line({"from": "human", "value": "Hi"}) + b"\n", "unknown_role"),
        (line({"role": ["user"], "content": "Hi"}) + b"\n", "unknown_role"),
        (line({"role": "User", "content": "Hi"}) + b"\n", "unknown_role"),
        (line(user(None)) + b"\n", "content_not_text"),
        (line(user([{"type": "text", "text": "Hi"}])) + b"\n", "content_not_text"),
        (line(user("")) + b"\n", "empty_content"),
        (line(user(" \r\n")) + b"\n", "empty_content"),
        (line({"role": "assistant", "content": ""}, user("Hi")) + b"\n", "empty_content"),
        (line(user("\ud83d")) + b"\n", "lone_surrogate"),
        (line({**user("Hi"), "tool_calls": [{}]}) + b"\n", "unknown_message_key"),
        (line(user("Hi"), tools=[{"name": "f"}]) + b"\n", "tools_not_supported"),
        (line(user("Hi"), {"role": "assistant", "content": "Hello"}) + b"\n", "last_turn_not_user"),
        (line({"role": "system", "content": "Be brief."}) + b"\n", "last_turn_not_user"),
    ],
)
def test_a_row_that_is_no_prompt_is_rejected_with_its_reason(content: bytes, expected: str):
    assert reason(content) == expected


def test_a_rejected_row_says_where_and_what():
    (row,) = parse(line({"role": "observation", "content": "x"}, user("Hi"), id="r9") + b"\n")
    assert isinstance(row, Rejected)
    assert row.source_key == "r9"
    assert row.detail == "line 1: message 0 has role 'observation'; known are system, user, assistant, tool"


def test_a_message_key_without_a_value_changes_nothing():
    assert only(line({**user("Hi"), "name": None, "tool_calls": None})).prompt_id == only(line(user("Hi"))).prompt_id


def test_every_role_of_the_table_can_stand_before_the_last_turn():
    for role in ROLES:
        assert only(line({"role": role, "content": "x"}, user("Hi")))


def test_human_eval_rows_become_a_request_with_the_code():
    row = only(b'{"task_id": "HumanEval/0", "prompt": "def f():\\n    \\"\\"\\"One.\\"\\"\\"\\n\\n"}\n', "human_eval")
    assert row.source_key == "HumanEval/0"
    assert row.user_turns == ('Complete the following Python function.\n\n```python\ndef f():\n    """One."""\n```',)


def test_code_with_braces_stays_as_it_is():
    row = only(json.dumps({"prompt": "x = {'{code}': 1}"}).encode(), "human_eval")
    assert "x = {'{code}': 1}" in row.user_turns[0]


def test_mt_bench_rows_give_their_first_turn():
    row = only(b'{"question_id": 81, "turns": ["First?", "Second?"]}\n', "mt_bench")
    assert (row.source_key, row.user_turns) == ("81", ("First?",))


@pytest.mark.parametrize(
    ("adapter", "row", "expected"),
    [
        ("human_eval", {"task_id": "HumanEval/1"}, "content_not_text"),
        ("human_eval", {"prompt": "\n"}, "empty_content"),
        ("mt_bench", {"question_id": 1}, "no_messages"),
        ("mt_bench", {"turns": []}, "no_messages"),
        ("mt_bench", {"turns": [{"content": "x"}]}, "content_not_text"),
        ("mt_bench", {"turns": ["\udc00"]}, "lone_surrogate"),
    ],
)
def test_benchmark_rows_pass_the_same_rules(adapter: str, row: dict[str, Any], expected: str):
    assert reason(json.dumps(row).encode() + b"\n", adapter) == expected


def test_the_recipe_knows_exactly_these_adapters():
    assert set(get_args(DatasetSpec.model_fields["adapter"].annotation)) == set(ADAPTERS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.sampled_from(ROLES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner),
    max_leaves=8,
)
ROWS = st.fixed_dictionaries({}, optional={"messages": JSON, "turns": JSON, "prompt": JSON, "id": JSON, "tools": JSON})
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from([*ROLES, "gpt"]), "content": st.text() | JSON}))
LINES = st.one_of(
    st.binary(),
    ROWS.map(lambda row: json.dumps(row).encode()),
    MESSAGES.map(lambda messages: json.dumps({"messages": messages}).encode()),
)


@given(content=st.lists(LINES).map(b"\n".join) | st.binary(), adapter=st.sampled_from(sorted(ADAPTERS)))
def test_any_bytes_give_one_outcome_per_line_that_can_be_stored(content: bytes, adapter: str):
    rows = parse(content, adapter)
    body = content.removeprefix(b"\xef\xbb\xbf")
    assert len(rows) == len(body.split(b"\n")) - (body.endswith(b"\n") or not body)
    rejected = [row for row in rows if isinstance(row, Rejected)]
    assert quarantine_table(rejected).num_rows == len(rejected)
    distinct = list({row.prompt_id: row for row in rows if isinstance(row, Prompt)}.values())
    for table in prompt_tables(distinct, "train", 2):
        assert PROMPTS.check(table, "test") is table


@given(st.lists(st.text().filter(lambda text: text.strip() and "\ud800" not in ascii(text)), min_size=1))
def test_contents_come_back_character_by_character(texts: list[str]):
    rows = parse(b"".join(line(user(text)) + b"\n" for text in texts))
    assert [row.user_turns for row in rows if isinstance(row, Prompt)] == [(text,) for text in texts]
    assert [json.loads(row.messages)[0]["content"] for row in rows if isinstance(row, Prompt)] == texts
