"""Tools in the TypeScript of Kimi's own tokenizer: the texts below are what that one makes of the same schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import TemplateRefused
from tasks.target.text import render_text
from tasks.target.typescript import typescript_tools


def tool(name: str, parameters: Any = None, description: str | None = None) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def declared(parameters: Any, description: str | None = None) -> str:
    """The declaration of one function, without what stands around all of them."""
    text = typescript_tools([tool("f", parameters, description)])
    head, tail = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    assert text.startswith(head)
    assert text.endswith(tail)
    return text[len(head) : -len(tail)]


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


SEARCH = """\
// Searches the index.
//  Twice.
type search = (_: {
  // What to look for
  // maxLength: 80, minLength: 1, pattern: ^a
  query: string,
  filter?: {
    // who
    owner: string,
    // Default: ["a", "ü"]
    tags?: Array<string>,
    [k: string]: number
  },
  // maximum: 50, minimum: 1.5
  // Default: 10
  limit?: number,
  // How
  // Default: "fast"
  mode?: "fast" | "slow" | None,
  rows?: Array<
    // one row
    // maxItems: 4
    Array<number>
  >
}) => any;"""


def test_a_function_with_all_kinds_of_parameters() -> None:
    filters = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "default": ["a", "\u00fc"]},
            "owner": {"type": "string", "description": "who"},
        },
        "required": ["owner"],
        "additionalProperties": {"type": "integer"},
    }
    rows = {
        "type": "array",
        "items": {"type": "array", "items": {"type": "number"}, "maxItems": 4, "description": "one row"},
    }
    parameters = of(
        rows=rows,
        query={"type": "string", "pattern": "^a", "minLength": 1, "maxLength": 80, "description": "What to look for"},
        limit={"type": "integer", "minimum": 1.5, "maximum": 50, "default": 10},
        mode={"enum": ["fast", "slow", None], "type": ["string", "null"], "default": "fast", "description": "How"},
        filter=filters,
    ) | {"required": ["query"]}
    text = typescript_tools([tool("search", parameters, "Searches the index.\n Twice."), tool("now")])
    assert text == (f"# Tools\n\n## functions\nnamespace functions {{\n{SEARCH}\ntype now = (_: {{}}) => any;\n}}\n")


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": ["integer", "null", "object", "array"]}, "number | null | {} | Array<any>"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "string | Array<any>"),
        ({"enum": [1, "a", True, None, 1.5]}, '1 | "a" | True | None | 1.5'),
        ({"type": "object"}, "{}"),
        ({"type": "object", "additionalProperties": False}, "{\n    [k: string]: never\n  }"),
        ({"type": "object", "additionalProperties": True}, "{\n    [k: string]: any\n  }"),
        ({}, "any"),
        (True, "any"),
        (False, "null"),
        ({"type": "array", "items": {}}, "Array<any>"),
        ({"type": "array", "items": {"type": "object", "properties": {"x": {}}}}, "Array<{\n    x?: any\n  }>"),
    ],
)
def test_types(schema: Any, written: str) -> None:
    assert declared(of(a=schema)) == f"type f = (_: {{\n  a?: {written}\n}}) => any;"


def test_definitions_become_interfaces_before_the_function() -> None:
    node = {"type": "object", "description": "A node", "properties": {"next": {"$ref": "#/$defs/node"}}}
    parameters = of(start={"$ref": "#/$defs/node", "description": "Where"}) | {
        "$defs": {"node": node, "also": {"type": "integer"}}
    }
    assert declared(parameters, "Walks") == (
        "interface also number\n// A node\ninterface node {\n  next?: node\n}\n// Walks\n"
        "type f = (_: {\n  // Where\n  start?: node\n}) => any;"
    )


def test_parameters_that_name_themselves_are_an_interface() -> None:
    parameters = of(b={"$ref": "#"}, a={"type": "string"}) | {"required": ["b"]}
    assert declared(parameters) == (
        "interface parameters {\n  a?: string,\n  b: parameters\n}\ntype f = (_: parameters) => any;"
    )


@pytest.mark.parametrize(
    "parameters",
    [
        of(a={"description": "no type"}),
        of(a={"$ref": "#/definitions/x"}),
        of(a={"$ref": "#/$defs/x"}),
        of(a={"enum": [1], "type": "string"}),
        of(a={"enum": ["x"], "type": ["string", "integer"]}),
        of(a={"type": ["odd"]}),
        of(a={"anyOf": [{"const": 1}]}),
        of(a=None),
        {"properties": [], "required": 3},
    ],
)
def test_a_schema_without_such_a_form_is_refused_and_the_tool_named(parameters: Any) -> None:
    with pytest.raises(TemplateRefused, match=r"the tool 'f' cannot be declared in TypeScript.*tools_ts_str"):
        declared(parameters)


def test_a_tool_that_is_no_function_is_refused() -> None:
    with pytest.raises(TemplateRefused, match="of type 'plugin'"):
        typescript_tools([{"type": "plugin", "plugin": {"name": "web"}}])


READS = "{% if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools | tojson }}{% endif %}"
HI = [{"role": "user", "content": "Hi"}]


def test_a_template_that_reads_the_variable_is_given_it() -> None:
    assert render_text(READS, HI, [tool("f")], {}) == typescript_tools([tool("f")])


def test_a_switch_leaves_tools_as_json_in_openais_order_of_keys() -> None:
    given = {"function": {"strict": True, "parameters": {}, "name": "f", "description": "D"}, "type": "function"}
    written = '{"type": "function", "function": {"name": "f", "description": "D", "parameters": {}, "strict": true}}'
    assert render_text(READS, HI, [given], {"tools_ts_str": ""}) == f"[{written}]"
    assert render_text("{{ tools | tojson }}", HI, [given], {}) == f"[{written}]"


SCHEMAS = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer", "description": "n"}, {"enum": ["a"]}, {}, True]),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda found: of(**found))
        | inner.map(lambda item: {"type": "array", "items": item})
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("abcd"), SCHEMAS, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(properties: dict[str, Any], random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}

    parameters = of(**properties) | {"required": ["b", "a"]}
    assert declared(shuffled(parameters)) == declared(json.loads(json.dumps(parameters)))
