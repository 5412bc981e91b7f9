"""Compares the first rows of a source with what its adapter expects, so that a dataset that changed its shape stops.

Single bad rows are no difference, they are quarantined: a column differs if it fits in none of the rows looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.prompts.adapters.shapes import Adapter, Column

PROBED_ROWS = 20
# Columns with words for the model in one dataset or another: an adapter reads them, or drops them knowingly.
TELLING = frozenset({"system", "tools", "functions", "images", "videos", "audios"})


def differences(adapter: Adapter, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each column that is not as the adapter expects it."""
    found = [difference for column in adapter.columns if (difference := _difference(column, rows))]
    unread = {name for row in rows for name in unread_columns(adapter, row)}
    return found + [f"{name}: not expected, though it would change the prompt" for name in sorted(unread)]


def unread_columns(adapter: Adapter, row: Mapping[str, Any]) -> list[str]:
    """Columns of a row with words for the model that this adapter knows nothing of."""
    unread = TELLING - adapter.reads - adapter.dropped
    return sorted(name for name in unread if row.get(name) not in (None, "", [], {}, "[]"))


def extra_columns(adapter: Adapter, rows: Sequence[Mapping[str, Any]], declared: Sequence[str]) -> list[str]:
    """Names of the columns that are not read."""
    return sorted({*declared, *(name for row in rows for name in row)} - adapter.reads)


def _difference(column: Column, rows: Sequence[Mapping[str, Any]]) -> str | None:
    there = [row[column.name] for row in rows if column.name in row]
    if not there:
        return None if column.optional else f"{column.name}: expected {_expected(column)}, missing"
    values = [value for value in there if value is not None and value != []]
    if not values or any(_fits(column, value) for value in values):
        return None
    found = sorted({_described(value) for value in values})
    return f"{column.name}: expected {_expected(column)}, found {' or '.join(found)}"


def _fits(column: Column, value: Any) -> bool:
    match column.kind:
        case "text":
            return isinstance(value, str)
        case "list or text":
            return isinstance(value, str | list)
        case "list of text":
            return isinstance(value, list) and isinstance(value[0], str)
        case "list":
            first = value[0] if isinstance(value, list) else None
            return isinstance(first, dict) and any(set(keys) <= first.keys() for keys in column.keys)


def _expected(column: Column) -> str:
    if column.kind == "list":
        return "a list of " + " or ".join(f"{{{', '.join(sorted(keys))}}}" for keys in column.keys)
    return "text" if column.kind == "text" else f"a {column.kind}"


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {_described_item(value[0]).removeprefix('a ')}" if value else "an empty list"
    return _described_item(value)


def _described_item(value: Any) -> str:
    match value:
        case str():
            return "text"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case dict():
            return f"{{{', '.join(ascii(key)[1:-1] for key in sorted(value)[:8])}}}"
    return f"a {type(value).__name__}"
