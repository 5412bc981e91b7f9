"""From the records of a source to conversations: probed, adapted, and each row either a conversation or Rejected."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.prompts.adapters import adapter_of
from tasks.prompts.adapters.shapes import Adapter
from tasks.prompts.conversation import Conversation, Rejected, conversation_of
from tasks.prompts.locate import Source, named, open_source
from tasks.prompts.probe import PROBED_ROWS, TELLING, differences, extra_columns, unread_columns
from tasks.prompts.records import Record, Records
from tasks.prompts.script import Unusable, is_unicode

_log = logging.getLogger("eyas.prompts")


def read_conversations(dataset: DatasetSpec, source: Source) -> Iterator[Conversation | Rejected]:
    """One outcome for every row of a source.

    Raises:
        PromptSourceError: the source cannot be read, or does not have the shape that its adapter expects.
    """
    adapter = adapter_of(dataset)
    records = open_source(dataset, source, adapter.reads | TELLING)
    first = list(islice(records.rows, PROBED_ROWS))
    _probe(dataset, adapter, first, records)
    for record in chain(first, records.rows):
        yield parse_record(record, dataset, adapter)


def parse_record(record: Record, dataset: DatasetSpec, adapter: Adapter) -> Conversation | Rejected:
    """What becomes of one row; a row with a fault anywhere is rejected whole."""
    key = record.place
    try:
        if isinstance(record.row, Unusable):
            raise record.row
        row = dict(record.row)
        key = _source_key(row.get(adapter.key), key)
        _refuse_unread(adapter, row)
        if record.columnar:
            _refuse_filled_tools(row)
        # the benchmark step decodes first turns only
        most_turns = 1 if dataset.split == "benchmark" else dataset.turns
        return conversation_of(adapter.to_script(row), dataset.name, key, most_turns)
    except Unusable as exc:
        return Rejected(dataset.name, key, exc.reason, f"{record.place}: {exc.detail}", record.raw)
    except RecursionError:
        return Rejected(dataset.name, key, "nested_too_deep", f"{record.place}: too deep to read", record.raw)


def _probe(dataset: DatasetSpec, adapter: Adapter, first: list[Record], records: Records) -> None:
    rows = [record.row for record in first if not isinstance(record.row, Unusable)]
    if not rows:
        return
    if found := differences(adapter, rows):
        raise PromptSourceError(
            f"{named(dataset)}: its first {len(rows)} rows are not what adapter {dataset.adapter!r} expects:\n  "
            + "\n  ".join(found)
            + "\nName the adapter that fits, or the revision that has the expected shape"
        )
    if extra := extra_columns(adapter, rows, records.columns):
        _log.info("dataset %s: columns that adapter %s does not read: %s", dataset.name, dataset.adapter, extra)


def _source_key(value: Any, otherwise: str) -> str:
    if isinstance(value, str) and value.strip() and is_unicode(value):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _refuse_unread(adapter: Adapter, row: dict[str, Any]) -> None:
    if unread := unread_columns(adapter, row):
        raise Unusable("unread_column", f"column {unread[0]} would change the prompt, but the adapter does not read it")


def _refuse_filled_tools(row: dict[str, Any]) -> None:
    if _has_null(row.get("tools")):
        raise Unusable(
            "tools_with_nulls",
            "columns of structs fill the keys that a tool lacks with null, which would reach the prompt; store the "
            "tools as JSON text",
        )


def _has_null(value: Any) -> bool:
    match value:
        case dict():
            return any(item is None or _has_null(item) for item in value.values())
        case list():
            return any(item is None or _has_null(item) for item in value)
    return False
