"""A call's arguments as JSON, out of what a family writes: JSON itself, or named values between tags.

Values between tags are text, and the tool's own schema says what they stand for: a string is the text as it is,
anything else is JSON. That is how serving engines hand a call to their clients, so that the history of the next turn is
what a client would send back. Where engines guess (an end tag left out, a boolean that is none), nothing is guessed
here: a text that is no value of its declared types stays text, a call that cannot be read has no arguments.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import regex

Schema = Mapping[str, Any]

_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}
_PYTHON = {"True": True, "False": False, "None": None}  # as templates write them that turn values into text
_WORDS = {"true": True, "false": False, "null": None}
_DEEPEST = 16  # references and choices in a schema


class UnreadableArguments(ValueError):
    """What was written is no set of arguments."""


def json_arguments(text: str, parameters: Schema) -> str:
    """Arguments that are JSON already, kept character by character; nothing at all is no arguments.

    Raises:
        UnreadableArguments: it is no JSON object.
    """
    if not text.strip():
        return "{}"
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as exc:
        raise UnreadableArguments(f"no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise UnreadableArguments(f"JSON of type {_TYPES[type(value)]}, no object")
    return text


@dataclass(frozen=True)
class Tags:
    """Named values between tags.

    Attributes:
        opening: what stands before a value; its group 1 is the name.
        closing: what stands after it.
        line_ends: one line end on either side of a value belongs to the tags.
        undeclared: what a value is of which the schema says nothing.
    """

    opening: regex.Pattern[str]
    closing: str
    line_ends: bool = False
    undeclared: Literal["text", "JSON"] = "text"

    def arguments(self, text: str, parameters: Schema) -> str:
        """The JSON of an object with all values, in the order in which they stand.

        Args:
            text: what is written between a call's own tags.
            parameters: the JSON schema of the called function's parameters; empty if there is none.

        Raises:
            UnreadableArguments: there is anything else beside whole values, or a value twice.
        """
        found: dict[str, Any] = {}
        for name, value in self._values(text):
            if name in found:
                raise UnreadableArguments(f"the value {name} stands there twice")
            types = declared_types(_property(parameters, name), parameters)
            found[name] = typed(value, types) if types or self.undeclared == "text" else _json_or_text(value)
        return json.dumps(found, ensure_ascii=False)

    def _values(self, text: str) -> Iterator[tuple[str, str]]:
        at = _after_space(text, 0)
        while at < len(text):
            opened = self.opening.match(text, at)
            if not opened:
                raise UnreadableArguments(f"{text[at : at + 40]!r} is no value")
            end = self._end(text, opened.end())
            value = text[opened.end() : end]
            if self.line_ends:
                value = value.removeprefix("\n").removesuffix("\n")
            yield opened[1].strip(), value
            at = _after_space(text, end + len(self.closing))

    def _end(self, text: str, begin: int) -> int:
        """Where the value ends: at the first closing tag after which another value begins, or nothing."""
        end = text.find(self.closing, begin)
        while end >= 0:
            after = _after_space(text, end + len(self.closing))
            if after == len(text) or self.opening.match(text, after):
                return end
            end = text.find(self.closing, end + 1)
        raise UnreadableArguments(f"{text[begin : begin + 40]!r} does not end in {self.closing}")


def parameters_of(name: str, tools: Sequence[Mapping[str, Any]] | None) -> Schema:
    """The JSON schema of a declared function's parameters; empty if it is not declared, or takes none."""
    for tool in tools or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}


def declared_types(schema: Any, root: Schema, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema lets a value have; none if it does not say."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return frozenset()
    found: set[str] = set()
    kind = schema.get("type")
    found.update([kind] if isinstance(kind, str) else [one for one in kind or () if isinstance(one, str)])
    values = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else [])]
    if not found:
        found.update(_TYPES[type(value)] for value in values if type(value) in _TYPES)
    for choices in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(choices) or ():
            found |= declared_types(choice, root, depth + 1)
    if isinstance(reference := schema.get("$ref"), str):
        found |= declared_types(_referred(reference, root), root, depth + 1)
    if not found and "properties" in schema:
        found.add("object")
    if not found and "items" in schema:
        found.add("array")
    return frozenset(found)


def typed(text: str, types: frozenset[str]) -> Any:
    """The value that a text stands for: JSON of a declared type, or else the text.

    Null may stand for whatever is no string, declared or not.
    """
    if types <= {"string"}:
        return text
    read = _json(text.strip())
    if read is _NOTHING:
        return text
    kind = _TYPES[type(read)]
    fits = kind in types or (kind == "integer" and "number" in types) or (kind == "null" and "string" not in types)
    return read if fits else text


def _finite(text: str) -> float:
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is no number that JSON can hold")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_NOTHING = object()


def _json(text: str) -> Any:
    if text in _PYTHON:
        return _PYTHON[text]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _json_or_text(text: str) -> Any:
    read = _json(text.strip())
    return text if read is _NOTHING else read


def _property(parameters: Schema, name: str) -> Any:
    properties = parameters.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def _referred(reference: str, root: Schema) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if reference.startswith("#/") else None


_SPACE = regex.compile(r"\s*")


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
