"""Whatever a source holds, each row has one outcome that can be stored, and outcomes do not depend on other rows."""

import contextlib
import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.errors import PromptSourceError
from tasks.prompts.adapters import ADAPTERS, PROMPT_COLUMN, adapter_of
from tasks.prompts.conversation import Conversation, Rejected
from tasks.prompts.parse import parse_record
from tasks.prompts.records import Record
from tasks.prompts.selection import Selection
from tasks.prompts.task import prompt_tables, quarantine_tables
from tests.prompts.given import dataset, kept, outcome, rows_of, system, user

ROLES = ["system", "user", "assistant", "tool", "human", "gpt", "ai", "function_call", "observation", "bard", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.sampled_from(ROLES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "name"]), inner),
    max_leaves=5,
)
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.sampled_from("fg")})}), max_size=2
)
SPOKEN = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("role", "from"), st.sampled_from(ROLES) | JSON),
        **dict.fromkeys(("content", "value", "text", "system_prompt"), st.text() | JSON),
        "name": st.sampled_from("fg"),
        "tool_calls": CALLS | JSON,
        "tool_call_id": JSON,
        "tool_call_ids": JSON,
    },
)
MESSAGES = st.lists(SPOKEN, max_size=6)
CHATS = st.lists(
    st.sampled_from(["USER: ", "ASSISTANT: ", "FUNCTION RESPONSE: ", "<functioncall> ", '{"name": "f"}', "\n\n\n", "x"])
).map("".join)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("messages", "conversations", "trajectory"), MESSAGES | JSON | MESSAGES.map(json.dumps)),
        **dict.fromkeys(("prompt", "input", "problem", "instruction", "id", "turns", "tools"), JSON),
        "chat": CHATS | JSON,
        "system": CHATS | JSON,
    },
)
ANY_ADAPTER = st.sampled_from([*sorted(ADAPTERS), PROMPT_COLUMN])


def check_storable(found: list[Conversation | Rejected]) -> None:
    chosen = Selection()
    for row in found:
        if isinstance(row, Conversation):
            chosen.take(chosen.set_aside(row))
    assert sum(table.num_rows for table in prompt_tables(chosen, "train", 10)) == len(chosen)  # tables are checked
    rejected = [row for row in found if isinstance(row, Rejected)]
    assert sum(table.num_rows for table in quarantine_tables(rejected)) == len(rejected)


@settings(max_examples=100, deadline=None)
@given(row=ROWS, adapter=ANY_ADAPTER, columnar=st.booleans())
def test_any_row_has_an_outcome_that_can_be_stored(row: dict[str, Any], adapter: str, columnar: bool):
    check_storable([outcome(row, adapter, columnar)])


LINES = st.binary() | ROWS.map(lambda row: json.dumps(row).encode())


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(LINES), adapter=ANY_ADAPTER)
def test_any_lines_are_one_outcome_each_or_an_error_that_says_why(tmp_path: Path, lines: list[bytes], adapter: str):
    content = b"0\n" + b"\n".join(lines) + b"\n"
    found = None
    with contextlib.suppress(PromptSourceError):
        found = rows_of(tmp_path / "rows", content, adapter)
    if found is not None:
        assert len(found) == content.count(b"\n")
        check_storable(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations([b"\xff", b"{}", *(json.dumps({"messages": [user(text)]}).encode() for text in "abc")]))
def test_ids_do_not_depend_on_the_order_of_rows(tmp_path: Path, lines: list[bytes]):
    found = rows_of(tmp_path / "rows", b"\n".join(lines) + b"\n")
    expected = {kept({"messages": [user(text)]}).root_id for text in "abc"}
    assert {row.root_id for row in found if isinstance(row, Conversation)} == expected


def test_a_row_without_a_key_is_known_by_its_place(tmp_path: Path):
    rows = [{"messages": [user("a")]}, {"messages": [user("b")], "id": ""}, {"messages": [user("c")], "id": 7}]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    assert [row.source_key for row in rows_of(tmp_path / "rows", lines)] == ["line 1", "line 2", "7"]
    array = json.dumps(rows).encode()
    assert [row.source_key for row in rows_of(tmp_path / "rows", array)] == ["row 1", "row 2", "7"]


def test_a_rejected_row_says_where_and_what_and_keeps_its_bytes(tmp_path: Path):
    line = b' {"id": "r9", "messages": [{"role": "observation", "content": "x"}]}\r'
    good = json.dumps({"messages": [system("S"), user("x")]}).encode()
    _, row = rows_of(tmp_path / "rows", good + b"\n" + line + b"\n")
    detail = "line 2: message 0 has role 'observation'; known are system, user, assistant, tool"
    assert row == Rejected("chat", "r9", "unknown_role", detail, line)


def test_tools_nested_beyond_reading_are_rejected():
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    spec = dataset()
    row = {"messages": [user("Hi")], "tools": [{"name": "f", "parameters": deep}]}
    found = parse_record(Record("line 1", b"{}", row), spec, adapter_of(spec))
    assert isinstance(found, Rejected)
    assert found.reason == "nested_too_deep"
