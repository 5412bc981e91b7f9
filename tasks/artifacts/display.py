"""How artifacts look in the terminal: tables, one artifact in full, and a family tree."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from schemas.errors import ArtifactInvalid
from tasks.artifacts.artifact import FILE, SourceFile
from tasks.artifacts.catalog import Catalog, Entry, Origin
from tasks.artifacts.files import verify_file
from tasks.artifacts.upkeep import Removal

_WIDEST_CELL = 60


def entry_table(entries: Iterable[Entry]) -> Table:
    """One line per artifact."""
    table = _table("step", "key", "kind", "rows>", "bytes>", "made at (UTC)", "age>")
    for entry in entries:
        made = entry.made_at.astimezone(datetime.UTC)
        table.add_row(
            entry.step,
            entry.short.partition("/")[2],
            _kind(entry),
            f"{entry.rows:,}",
            size(entry.bytes),
            f"{made:%Y-%m-%d %H:%M:%S}",
            age(datetime.datetime.now(datetime.UTC) - made),
        )
    return table


def removal_table(removals: Iterable[Removal]) -> Table:
    """What `prune` would remove."""
    table = _table("why", "what", "bytes>", "unused for>")
    for removal in removals:
        table.add_row(removal.reason, removal.name, size(removal.bytes), age(removal.age()))
    return table


def show_entry(catalog: Catalog, entry: Entry, rows: int, console: Console) -> None:
    """Everything that is known of one artifact, and the first rows of each of its parts."""
    lineage = entry.lineage
    about = _table("", "", header=False)
    for name, value in (
        ("key", entry.key),
        ("kind", _kind(entry)),
        ("digest", entry.head["digest"]),
        ("file", str(catalog.root / "results" / entry.key)),
        ("made", f"{lineage.get('made_at')} on {lineage.get('host')} in {lineage.get('seconds')} s"),
        ("by", f"eyas {lineage.get('eyas')}, task version {lineage.get('task_version')}"),
        ("recipe", str(lineage.get("recipe") or "none")),
        ("last used", f"{entry.last_used:%Y-%m-%dT%H:%M:%S+00:00}"),
    ):
        about.add_row(name, escape(value))
    console.print(about)
    for title, values in (
        ("facts", entry.head.get("facts")),
        ("measures", entry.head.get("measures")),
        ("inputs", lineage.get("inputs")),
    ):
        if values:
            console.print(_values(title, values))
    if entry.shards:
        console.print(_parts(entry))
        for part in dict.fromkeys(shard.part for shard in entry.shards):
            first = next(shard for shard in entry.shards if shard.part == part)
            if first.contract == FILE:
                continue
            path = first.locate(catalog.root)
            verify_file(path, first.bytes, first.sha256, "sha256")
            console.print(_rows(f"{part} ({first.contract}), first rows of {path.name}", path, rows))
    else:
        console.print(_rows(f"{entry.head['contract']}, first rows", catalog.root / "results" / entry.key, rows))


def lineage_tree(catalog: Catalog, entry: Entry) -> Tree:
    """What an artifact was made from, down to the files outside the store."""
    tree = Tree(_node(entry))
    _grow(tree, catalog, entry, {entry.key})
    return tree


def size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def age(span: datetime.timedelta) -> str:
    """A time span for people, to its largest unit."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _grow(tree: Tree, catalog: Catalog, entry: Entry, seen: set[str]) -> None:
    for origin in catalog.origins(entry):
        found = origin.entry
        if found is None:
            tree.add(f"[dim]{escape(origin.parameter)}:[/] {_absent(origin)}")
        elif found.key in seen:
            tree.add(f"[dim]{escape(origin.parameter)}:[/] {found.short} [dim](see above)[/]")
        else:
            seen.add(found.key)
            _grow(tree.add(f"[dim]{escape(origin.parameter)}:[/] {_node(found)}"), catalog, found, seen)


def _node(entry: Entry) -> str:
    made = entry.made_at.astimezone(datetime.UTC)
    return f"[bold]{entry.short}[/]  {entry.rows:,} rows, {size(entry.bytes)}, {made:%Y-%m-%d %H:%M} UTC"


def _absent(origin: Origin) -> str:
    if origin.kind == SourceFile.kind:
        return f"file from outside the store, SHA-256 {origin.digest[:16]}…"
    return f"[yellow]no longer in the store[/], digest {origin.digest[:16]}…"


def _kind(entry: Entry) -> str:
    if entry.head["kind"] == "shards":
        return f"{len(entry.shards)} shard{'s' * (len(entry.shards) != 1)}"
    return f"rows of {entry.head['contract']}"


def _parts(entry: Entry) -> Table:
    table = _table("part", "contract", "file", "rows>", "bytes>", "SHA-256")
    for shard in entry.shards:
        table.add_row(shard.part, shard.contract, shard.path, f"{shard.rows:,}", size(shard.bytes), shard.sha256[:16])
    return table


def _values(title: str, values: dict[str, Any]) -> Table:
    table = _table(title, "")
    for name, value in values.items():
        table.add_row(name, escape(_brief(value, 4 * _WIDEST_CELL)))
    return table


def _rows(title: str, path: Path, count: int) -> Group:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            batch = next(file.iter_batches(batch_size=max(count, 1)), None)
    except OSError as exc:
        raise ArtifactInvalid(f"{path} is not readable Parquet: {exc}") from exc
    rows = [] if batch is None else batch.slice(0, count).to_pylist()
    table = _table("column", "type", *[f"row {position}" for position in range(len(rows))], title=title)
    for column in schema:
        cells = [escape(_brief(row[column.name], _WIDEST_CELL)) for row in rows]
        table.add_row(column.name, escape(str(column.type)), *cells)
    return Group("", table)


def _brief(value: Any, limit: int) -> str:
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text.replace("\n", "⏎")
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…" + (f" ({len(value):,} items)" if isinstance(value, list) else "")


def _table(*columns: str, title: str | None = None, header: bool = True) -> Table:
    table = Table(title=title, title_justify="left", show_header=header, box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.removesuffix(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return table
