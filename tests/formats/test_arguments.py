"""A call's arguments are read by the tool's schema, and published templates write them back as they were sampled."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.formats.arguments import UnreadableArguments, declared_types, json_arguments, typed
from tasks.formats.format import ToolCall
from tasks.target.text import load_template, render_text
from tests.formats.bound import Bound, bound
from tests.tokenizers import folder

PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "deep": {"type": "boolean"},
    "filter": {"type": "object"},
    "names": {"type": "array", "items": {"type": "string"}},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "mode": {"enum": ["fast", "slow"]},
    "level": {"enum": [1, 2]},
    "owner": {"$ref": "#/$defs/owner"},
    "label": {"type": ["string", "null"]},
    "bare": {},
}
PARAMETERS = {
    "type": "object",
    "properties": PROPERTIES,
    "$defs": {"owner": {"type": "object", "properties": {"id": {"type": "integer"}}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": PARAMETERS}},
]

Written = Callable[[dict[str, str]], str]

FAMILIES: dict[str, tuple[str, Written]] = {  # tokenizer with its template, and how it writes values
    "qwen3.5": (
        "qwen-3.5",
        lambda values: "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in values.items()),
    ),
    "glm-4.5": (
        "glm-4.5v",
        lambda values: "".join(
            f"<arg_key>{name}</arg_key>\n<arg_value>{text}</arg_value>\n" for name, text in values.items()
        ),
    ),
    "glm-4.7": (
        "glm-4.7-flash",
        lambda values: "".join(
            f"<arg_key>{name}</arg_key><arg_value>{text}</arg_value>" for name, text in values.items()
        ),
    ),
    "minimax-m2": (
        "minimax",
        lambda values: (
            "\n" + "".join(f'<parameter name="{name}">{text}</parameter>\n' for name, text in values.items())
        ),
    ),
}


def own(family: str) -> Bound:
    return bound(family, FAMILIES[family][0])


def read(family: str, values: dict[str, str], tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    written = FAMILIES[family][1](values)
    return json.loads(own(family).format.arguments(ToolCall("find", written), TOOLS if tools is None else tools))


def refused(family: str, written: str) -> str:
    with pytest.raises(UnreadableArguments) as caught:
        own(family).format.arguments(ToolCall("find", written), TOOLS)
    return str(caught.value)


CASES: list[tuple[str, str, Any]] = [
    ("text", "abc", "abc"),
    ("text", "12", "12"),
    ("text", "null", "null"),
    ("text", '{"a": 1}', '{"a": 1}'),
    ("text", "", ""),
    ("text", "  two\n\nlines ", "  two\n\nlines "),
    ("count", "12", 12),
    ("count", "12.0", "12.0"),
    ("count", "twelve", "twelve"),
    ("count", "007", "007"),
    ("share", "1.5", 1.5),
    ("share", "2", 2),
    ("share", "1e400", "1e400"),
    ("share", "NaN", "NaN"),
    ("deep", "true", True),
    ("deep", "False", False),
    ("deep", "maybe", "maybe"),
    ("filter", '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
    ("filter", "[1]", "[1]"),
    ("names", '["a", "\u00fc"]', ["a", "\u00fc"]),
    ("names", "a, b", "a, b"),
    ("limit", "null", None),
    ("limit", "None", None),
    ("limit", "3", 3),
    ("count", "null", None),
    ("mode", "fast", "fast"),
    ("mode", "1", "1"),
    ("level", "2", 2),
    ("owner", '{"id": 1}', {"id": 1}),
    ("label", "null", None),
    ("label", "12", "12"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "text", "value"), CASES)
def test_a_value_is_of_its_declared_type_or_stays_text(family: str, name: str, text: str, value: Any) -> None:
    found = read(family, {name: text})
    assert found == {name: value}
    assert type(found[name]) is type(value)


@pytest.mark.parametrize(
    ("family", "value"), [("qwen3.5", "12"), ("minimax-m2", "12"), ("glm-4.5", 12), ("glm-4.7", 12)]
)
@pytest.mark.parametrize("name", ["undeclared", "bare"])
def test_what_the_schema_does_not_say_is_text_but_for_glm_json(family: str, value: Any, name: str) -> None:
    assert read(family, {name: "12"}) == {name: value}
    assert read(family, {name: "abc"}) == {name: "abc"}
    assert read(family, {"count": "12"}, tools=[]) == {"count": value}


@pytest.mark.parametrize("family", FAMILIES)
def test_values_keep_their_order_and_none_is_no_arguments(family: str) -> None:
    assert list(read(family, {"share": "1", "count": "2", "text": "x"})) == ["share", "count", "text"]
    assert read(family, {}) == {}
    assert own(family).format.arguments(ToolCall("find", ""), TOOLS) == "{}"


@pytest.mark.parametrize("family", FAMILIES)
def test_text_beside_the_values_or_a_value_twice_cannot_be_read(family: str) -> None:
    once = FAMILIES[family][1]({"count": "1"})
    assert "is no value" in refused(family, "see " + once)
    assert "does not end" in refused(family, once + "see")
    assert "does not end" in refused(family, once.rpartition("</")[0])
    assert refused(family, once + once) == "the value count stands there twice"


def test_an_end_tag_inside_of_a_value_is_text_where_no_value_follows() -> None:
    text = "write </parameter> here"
    assert read("qwen3.5", {"text": text, "count": "1"}) == {"text": text, "count": 1}
    assert read("minimax-m2", {"text": text}) == {"text": text}


def test_only_one_line_end_on_either_side_belongs_to_the_tags_of_qwen() -> None:
    assert read("qwen3.5", {"text": "\n a\n\n"}) == {"text": "\n a\n\n"}


@pytest.mark.parametrize("text", ['{"b":[1,  2],"a":"\\u00fc"}', "{}", ' {"a": 1}\n'])
def test_arguments_that_are_json_keep_every_character(text: str) -> None:
    assert json_arguments(text, {}) == text
    for family, tokenizer in (("qwen3", "qwen-3"), ("kimi-k2.5", "kimi"), ("deepseek-v3.1", "deepseek-v3.1")):
        assert bound(family, tokenizer).format.arguments(ToolCall("find", text), None) == text
    assert bound("gpt-oss", "gpt-oss").format.arguments(ToolCall("find", text), None) == text


def test_types_are_found_behind_choices_and_references_and_end_in_a_circle() -> None:
    root = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}, "b": {"items": {}}}}
    assert declared_types({"$ref": "#/$defs/a"}, root) == {"integer"}
    assert declared_types({"oneOf": [{"$ref": "#/$defs/b"}, {"const": None}]}, root) == {"array", "null"}
    assert declared_types({"$ref": "#/$defs/none"}, root) == declared_types({"$ref": "http://x"}, root) == frozenset()
    assert declared_types({"allOf": [{"properties": {}}]}, root) == {"object"}
    assert declared_types(True, root) == frozenset()


def nfc(text: str) -> str:
    """What the tokenizers of Qwen and MiniMax make of the text of JSON."""
    return unicodedata.normalize("NFC", json.dumps(json.loads(text), ensure_ascii=False))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
# Text in which no tag begins or ends, and at whose ends no template or tokenizer takes anything away.
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Mn"], exclude_characters="<>"), max_size=20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "count": st.integers(),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "deep": st.booleans(),
    "filter": st.dictionaries(TEXTS, JSON_VALUES, max_size=2),
    "names": st.lists(TEXTS, max_size=3),
    "limit": st.none() | st.integers(),
    "mode": st.sampled_from(["fast", "slow"]),
}
ARGUMENTS = st.fixed_dictionaries({}, optional=VALUES).map(lambda values: json.loads(nfc(json.dumps(values))))


def conversation(name: str, arguments: str) -> list[dict[str, Any]]:
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "tool_call_id": "call_0", "content": "done"},
    ]


@settings(max_examples=30)
@given(st.sampled_from(list(FAMILIES)), ARGUMENTS)
def test_what_a_template_writes_of_arguments_is_read_as_these_arguments(family: str, arguments: dict[str, Any]) -> None:
    """render, sample it, take it apart, render again: the same prompt, and the same values."""
    template = load_template(folder(FAMILIES[family][0]))
    messages = conversation("find", json.dumps(arguments))
    once = render_text(template.text, messages, TOOLS, {}, template.tokens)
    completion = own(family).codec.encode_prompt([sampled(once)])[0]
    reply = own(family).reply(completion, "closed")
    ((name, written),) = [(call.name, call.arguments) for call in reply.calls]
    assert name == "find"
    again = own(family).format.arguments(ToolCall(name, written), TOOLS)
    assert json.dumps(json.loads(again), sort_keys=True) == json.dumps(arguments, sort_keys=True)
    assert render_text(template.text, conversation(name, again), TOOLS, {}, template.tokens) == once
    assert all(section in once for section in reply.sections)


def sampled(text: str) -> str:
    """The last tool section of a rendered prompt."""
    opening, closing = next(
        pair
        for pair in (("<minimax:tool_call>", "</minimax:tool_call>"), ("<tool_call>", "</tool_call>"))
        if pair[0] in text
    )
    return opening + text.rpartition(opening)[2].partition(closing)[0] + closing


@given(st.sampled_from(sorted({"string", "integer", "number", "boolean", "object", "array", "null"})), st.text())
def test_any_text_is_a_value_of_any_type(kind: str, text: str) -> None:
    value = typed(text, frozenset([kind]))
    assert value == text or json.dumps(value)


@settings(max_examples=100)
@given(st.sampled_from(list(FAMILIES)), st.text(st.sampled_from("a <>\n/=\"{}parmetgkyvlu_'1"), max_size=60))
def test_any_text_is_arguments_or_refused(family: str, text: str) -> None:
    try:
        assert isinstance(json.loads(own(family).format.arguments(ToolCall("find", text), TOOLS)), dict)
    except UnreadableArguments:
        return
