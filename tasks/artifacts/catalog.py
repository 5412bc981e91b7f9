"""What is in a store, read from the index and the Parquet footers: entries, and which entry was made from which.

Reads no shard and trusts nothing: a record that cannot be read is listed as damaged. It never writes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.errors import ArtifactInvalid, StoreError
from tasks.artifacts.artifact import Shard, Shards, SourceFile
from tasks.artifacts.files import METADATA_KEY
from tasks.artifacts.store import open_store, store_root

_SHORT = 12


@dataclass(frozen=True)
class Entry:
    """One stored artifact: its footer, its shards, and the files that hold it."""

    key: str
    head: dict[str, Any]
    shards: tuple[Shard, ...]
    rows: int
    bytes: int  # result and shards
    last_used: datetime.datetime  # made, or found again by a run

    @property
    def step(self) -> str:
        """The task that made it."""
        return self.key.partition("/")[0]

    @property
    def short(self) -> str:
        """Step and the first digits of the key, enough to name it on the command line."""
        return f"{self.step}/{Path(self.key).stem[:_SHORT]}"

    @property
    def lineage(self) -> dict[str, Any]:
        """Where it came from, as the artifact task wrote it."""
        return self.head.get("lineage") or {}

    @property
    def made_at(self) -> datetime.datetime:
        """When it was made."""
        written = self.lineage.get("made_at")
        return datetime.datetime.fromisoformat(written) if written else self.last_used

    def inputs(self) -> list[tuple[str, str, str]]:
        """Name, kind and digest of every artifact and source file that it was made from."""
        return list(_digests("", self.lineage.get("inputs") or {}))

    def digests(self) -> Iterator[str]:
        """Every digest under which another artifact can have taken it, or a part of it, as input."""
        yield self.head["digest"]
        facts = self.head.get("facts") or {}
        parts = {shard.part for shard in self.shards}
        subsets = [(shard,) for shard in self.shards]
        subsets += [tuple(shard for shard in self.shards if shard.part == part) for part in sorted(parts)]
        for subset in subsets:
            yield Shards(shards=subset).digest()
            yield Shards(shards=subset, facts=facts).digest()


@dataclass(frozen=True)
class Origin:
    """One input of an artifact: which parameter, and the stored artifact it was, if that is still there."""

    parameter: str
    kind: str
    digest: str
    entry: Entry | None


@dataclass
class Catalog:
    """All artifacts of a store."""

    root: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)  # key -> why its record or result cannot be read

    def find(self, name: str) -> Entry:
        """The entry of a key, or of a prefix of a key with or without its step, that fits only one.

        Raises:
            KeyError: none fits, or several do; the message lists them.
        """
        wanted = name.removesuffix(".parquet")
        found = [e for e in self.entries.values() if wanted and _fits(e.key.removesuffix(".parquet"), wanted)]
        if not found:
            raise KeyError(f"no artifact is called {name!r} in {self.root}; `python -m tasks.artifacts ls` lists them")
        if len(found) > 1:
            raise KeyError(f"{name!r} fits {len(found)} artifacts: {', '.join(e.short for e in found)}")
        return found[0]

    def origins(self, entry: Entry) -> list[Origin]:
        """What an artifact was made from."""
        return [
            Origin(parameter, kind, digest, None if kind == SourceFile.kind else self._made_before(digest, entry))
            for parameter, kind, digest in entry.inputs()
        ]

    def references(self, entry: Entry) -> set[str]:
        """Keys of all artifacts that this one needs: those it was made from, and those whose shards it lists."""
        keys = {found.key for _, _, digest in entry.inputs() for found in self._by_digest.get(digest, [])}
        keys |= {f"{Path(shard.path).parts[1]}/{Path(shard.path).parts[2]}.parquet" for shard in entry.shards}
        return (keys & self.entries.keys()) - {entry.key}

    def ancestors(self, keys: set[str]) -> set[str]:
        """These keys and all that they need, through any number of steps."""
        seen: set[str] = set()
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            if key not in seen:
                seen.add(key)
                waiting.extend(self.references(self.entries[key]))
        return seen

    @cached_property
    def _by_digest(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            for digest in set(entry.digests()):
                found.setdefault(digest, []).append(entry)
        return found

    def _made_before(self, digest: str, child: Entry) -> Entry | None:
        candidates = [entry for entry in self._by_digest.get(digest, []) if entry.key != child.key]
        earlier = [entry for entry in candidates if entry.made_at <= child.made_at]
        return max(earlier or candidates, key=lambda entry: entry.made_at, default=None)


def existing_store() -> Path:
    """The store's folder, which must be there already.

    Raises:
        StoreError: there is none, or this eyas cannot read it.
    """
    root = store_root()
    if not (root / "store.json").is_file():
        raise StoreError(f"there is no store in {root}: `make smoke` makes one, EYAS_STORE says where it is")
    return open_store()


def scan(root: Path) -> Catalog:
    """Read the footers of all artifacts of a store, in the order in which they were made."""
    catalog = Catalog(root)
    found = []
    for record in sorted((root / "index").glob("*/*.json")):
        key = f"{record.parent.name}/{record.stem}"
        try:
            found.append(_entry(root, key, record))
        except ArtifactInvalid as exc:
            catalog.damaged[key] = str(exc)
    for entry in sorted(found, key=lambda entry: (entry.made_at, entry.key)):
        catalog.entries[entry.key] = entry
    return catalog


def _entry(root: Path, key: str, record: Path) -> Entry:
    result = root / "results" / key
    try:
        with pq.ParquetFile(result) as file:
            rows, metadata = file.metadata.num_rows, file.schema_arrow.metadata or {}
            head = json.loads(metadata[METADATA_KEY])
            manifest = file.read().to_pylist() if head["kind"] == Shards.kind else []
        shards = tuple(Shard(**row) for row in manifest)
        if not isinstance(head["digest"], str):
            raise TypeError("no digest")
        used, size = record.stat().st_mtime, result.stat().st_size
    except FileNotFoundError as exc:
        raise ArtifactInvalid(f"{result} is missing") from exc
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as exc:
        raise ArtifactInvalid(f"{result} is no result of eyas: {exc!r}") from exc
    return Entry(
        key=key,
        head=head,
        shards=shards,
        rows=sum(shard.rows for shard in shards) if shards else rows,
        bytes=size + sum(shard.bytes for shard in shards),
        last_used=datetime.datetime.fromtimestamp(used, datetime.UTC),
    )


def _fits(key: str, wanted: str) -> bool:
    return key.startswith(wanted) or key.partition("/")[2].startswith(wanted)


def _digests(name: str, value: Any) -> Iterator[tuple[str, str, str]]:
    match value:
        case {"$artifact": str(kind), "digest": str(digest)}:
            yield name, kind, digest
        case dict():
            for key, item in value.items():
                yield from _digests(f"{name}.{key}" if name else key, item)
        case list():
            for position, item in enumerate(value):
                yield from _digests(f"{name}[{position}]", item)
