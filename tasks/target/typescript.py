"""Tools as TypeScript declarations, the form in which Kimi K2.5 and later are told of them.

Their Python tokenizer makes this text out of the JSON schemas and gives it to the chat template as `tools_ts_str`; it
is what vLLM and SGLang serve. Required parameters stand before optional ones, each by name. A schema that has no such
form is refused: the published tokenizer would write JSON instead, with a line on its console.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from schemas.errors import TemplateRefused

TOOLS_VARIABLE = "tools_ts_str"

_STEP = "  "
_REFERENCE = "#/$defs/"
_ITSELF = "parameters"
_UNION = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_BOUNDS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_VALUES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


class _Unsupported(ValueError):
    pass


def typescript_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declarations of all functions, as one text.

    Raises:
        TemplateRefused: a schema has no TypeScript form; names the tool.
    """
    declared = []
    for tool in tools:
        function = tool.get("function")
        if tool.get("type") != "function" or not function:
            raise TemplateRefused(f"a tool of type {tool.get('type')!r} cannot be declared: it is no function")
        try:
            declared.append(_Declaration(function).text())
        except (_Unsupported, AttributeError, TypeError, KeyError, ValueError, RecursionError) as exc:
            raise TemplateRefused(
                f"the tool {function.get('name')!r} cannot be declared in TypeScript, as this target's tokenizer "
                f"declares tools: {exc!r}. Where the server writes them as JSON, set target.template_switches."
                f"{TOOLS_VARIABLE} to an empty text"
            ) from exc
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(declared) + "\n}\n"


class _Type(NamedTuple):
    """A type as it is written after a name, and the comment that goes before the name."""

    text: str
    comment: str


class _Declaration:
    """One function; `definitions` are the schemas that it names."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        self._function = function
        self._parameters: Mapping[str, Any] = function.get("parameters") or {}
        self._definitions: dict[str, Any] = {}
        self._names_itself = False

    def text(self) -> str:
        self._learn_object(self._parameters)
        taken, names_itself = self._object(self._parameters, ""), self._names_itself
        interfaces = [self._itself()] if names_itself else []
        for name, schema in list(self._definitions.items()):
            if isinstance(schema, bool):
                raise _Unsupported(f"the definition {name} is no schema")
            self._learn(schema)
            comment = _comment(schema, "")
            interfaces.append(f"{comment}interface {name} {self._type(schema, '').text}")
        argument = _ITSELF if names_itself else taken
        whole = f"type {self._function.get('name', 'function')} = (_: {argument}) => any;"
        lines = ["\n".join(interfaces), _comment(self._function, "").removesuffix("\n"), whole]
        return "\n".join(line for line in lines if line)

    def _learn(self, schema: Any) -> None:
        """Find the definitions in a schema; one must stand before all that name it, and keys stand sorted."""
        if isinstance(schema, bool):
            return
        if "$ref" in schema:
            self._refer(schema["$ref"])
        elif "anyOf" in schema:
            for choice in schema["anyOf"]:
                self._learn(choice)
        elif "enum" not in schema and schema.get("type") == "object":
            self._learn_object(schema)
        elif "enum" not in schema and schema.get("type") == "array" and schema.get("items"):
            self._learn(schema["items"])

    def _learn_object(self, schema: Mapping[str, Any]) -> None:
        self._definitions |= dict(sorted((schema.get("$defs") or {}).items()))
        if isinstance(others := schema.get("additionalProperties"), Mapping):
            self._learn(others)
        for _, inner in sorted(schema.get("properties", {}).items()):
            self._learn(inner)

    def _itself(self) -> str:
        """The interface of parameters that name themselves, in the order of the schema's sorted keys."""
        properties = sorted((self._parameters.get("properties") or {}).items())
        fields = ",\n".join(self._field(self._parameters, name, schema, _STEP) for name, schema in properties)
        return f"interface {_ITSELF} {{" + (f"\n{fields}\n" if fields else "") + "}"

    def _type(self, schema: Any, indent: str) -> _Type:
        if isinstance(schema, bool):
            return _Type("any" if schema else "null", "")
        return _Type(self._written(schema, indent), _comment(schema, indent, _bounds(schema)))

    def _written(self, schema: Mapping[str, Any], indent: str) -> str:
        if "$ref" in schema:
            return _ITSELF if schema["$ref"] == "#" else schema["$ref"].rpartition("/")[2]
        if "anyOf" in schema:
            return " | ".join(self._type(choice, indent).text for choice in schema["anyOf"])
        if "enum" in schema:
            return _enumerated(schema)
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(_UNION[one] for one in kind)
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        if kind is None and schema:
            raise _Unsupported(f"a schema without type: {json.dumps(schema)[:80]}")
        return "number" if kind == "integer" else kind or "any"

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        ordered = sorted(properties, key=lambda name: (name not in required, name))
        fields = [self._field(schema, name, properties[name], indent + _STEP) for name in ordered]
        fields += self._others(schema, indent + _STEP)
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"

    def _others(self, schema: Mapping[str, Any], indent: str) -> Iterator[str]:
        others = schema.get("additionalProperties")
        if others is None:
            return
        kind = "never" if others is False else self._type(others, indent).text
        yield f"{indent}[k: string]: {kind}"

    def _field(self, schema: Mapping[str, Any], name: str, inner: Any, indent: str) -> str:
        kind = self._type(inner, indent)
        comment = kind.comment
        default = inner.get("default") if isinstance(inner, Mapping) else None
        if default is not None:
            told = repr(default) if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
            comment += f"{indent}// Default: {told}\n"
        optional = "" if name in schema.get("required", []) else "?"
        return f"{comment}{indent}{name}{optional}: {kind.text}"

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        if not schema.get("items"):
            return "Array<any>"
        commented = self._type(schema["items"], indent + _STEP)
        if commented.comment:
            return f"Array<\n{commented.comment}{indent}{_STEP}{commented.text}\n{indent}>"
        return f"Array<{self._type(schema['items'], indent).text}>"

    def _refer(self, reference: str) -> None:
        self._names_itself |= reference == "#"
        name = reference.removeprefix(_REFERENCE).rpartition("/")[2]
        if reference != "#" and not (reference.startswith(_REFERENCE) and name in self._definitions):
            raise _Unsupported(f"the reference {reference} leads nowhere")


def _bounds(schema: Mapping[str, Any]) -> str:
    """The limits of a value, where its type has such."""
    if any(name in schema for name in ("$ref", "anyOf", "enum")) or not isinstance(schema.get("type"), str):
        return ""
    return ", ".join(f"{name}: {schema[name]}" for name in _BOUNDS.get(schema["type"], ()) if name in schema)


def _comment(schema: Any, indent: str, bounds: str = "") -> str:
    told = schema.get("description", "") if isinstance(schema, Mapping) else ""
    lines = [f"{indent}// {line}" if line else "" for line in told.split("\n")] if told else []
    lines += [f"{indent}// {bounds}"] if bounds else []
    return "".join(f"{line}\n" for line in lines)


def _enumerated(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        if len(kind) not in (1, 2) or (len(kind) == 2 and "null" not in kind):
            raise _Unsupported(f"an enumeration of the types {kind}")
        kind = min(kind, key=lambda one: one == "null")
    allowed = _VALUES.get(kind) if isinstance(kind, str) else None
    for value in schema["enum"]:
        if value is not None and allowed and not isinstance(value, allowed):
            raise _Unsupported(f"the value {value!r} of an enumeration is no {kind}")
    return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])
