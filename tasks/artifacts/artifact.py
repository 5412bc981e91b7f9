"""The two kinds of task result: a small table, or a manifest that lists shards. Both are one Parquet file in the store.

An artifact's digest covers its content only: not its path, its time, nor the machine that made it.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandera.pandas as pandera
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from schemas.contract import REGISTRY, Contract
from schemas.errors import ArtifactInvalid
from tasks.artifacts.files import VerifyLevel, read_table, sha256_file, verify_file
from tasks.artifacts.store import store_root

FILE = "file"  # contract name of a shard that is no Parquet table (safetensors, JSON)

SHARDS = Contract(
    "shards",
    pa.schema(
        [
            pa.field("part", pa.string(), nullable=False),
            pa.field("contract", pa.string(), nullable=False),
            pa.field("path", pa.string(), nullable=False),
            pa.field("sha256", pa.string(), nullable=False),
            pa.field("rows", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "part": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "path": pandera.Column(str, pandera.Check.str_matches(r"^(?!/)(?!.*(^|/)\.\.(/|$))"), unique=True),
            "sha256": pandera.Column(str, pandera.Check.str_matches(r"^[0-9a-f]{64}$")),
            "rows": pandera.Column("int64", pandera.Check.ge(0)),
            "bytes": pandera.Column("int64", pandera.Check.ge(0)),
        }
    ),
)


class Artifact(BaseModel, ABC):
    """A typed task result.

    `facts` are small values that belong to the content (they count in the digest); `measures` are figures such as
    seconds that differ from run to run (they do not); `lineage` is filled in when the artifact is stored. A provisional
    result is stored and read like any other, but it is not found again: the next run of its task is done anew, with
    the chance of a better one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    kind: ClassVar[str]

    facts: dict[str, Any] = Field(default_factory=dict)
    measures: dict[str, float] = Field(default_factory=dict)
    lineage: dict[str, Any] = Field(default_factory=dict)
    provisional: bool = False

    @abstractmethod
    def to_table(self) -> pa.Table:
        """The table that is stored."""

    @abstractmethod
    def digest(self) -> str:
        """Hex SHA-256 of the content."""

    def verify(self, root: Path, level: VerifyLevel) -> None:
        """Check what the result points to; raises ArtifactInvalid."""

    def _facts_bytes(self) -> bytes:
        return json.dumps(self.facts, sort_keys=True, ensure_ascii=False).encode()


class Rows(Artifact):
    """A result that is itself one table of one contract."""

    kind: ClassVar[str] = "rows"
    contract: str
    table: pa.Table

    def to_table(self) -> pa.Table:
        return REGISTRY[self.contract].check(self.table, f"result of contract {self.contract!r}")

    def digest(self) -> str:
        # Not the file's bytes: those name the version of the Parquet library.
        rows = json.dumps(self.table.to_pylist(), ensure_ascii=False, default=bytes.hex)
        content = f"{self.contract}\0{self.table.schema.remove_metadata()}\0{rows}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(self._facts_bytes() + b"\0" + content).hexdigest()


class Shard(BaseModel):
    """One file of a sharded artifact; `path` is relative to the store, so that a store can be moved."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    part: str
    contract: str
    path: str
    sha256: str
    rows: int
    bytes: int

    def locate(self, root: Path | None = None) -> Path:
        """Where the file is now."""
        return (root or store_root()) / self.path


class Shards(Artifact):
    """A manifest: rows list the shards of one or more named parts."""

    kind: ClassVar[str] = "shards"
    shards: tuple[Shard, ...]

    def to_table(self) -> pa.Table:
        return SHARDS.table([shard.model_dump() for shard in self.shards], "manifest")

    def digest(self) -> str:
        hasher = hashlib.sha256(self._facts_bytes())
        for shard in self.shards:
            hasher.update(f"\0{shard.part}\0{Path(shard.path).name}\0{shard.sha256}\0{shard.rows}".encode())
        return hasher.hexdigest()

    def verify(self, root: Path, level: VerifyLevel) -> None:
        for shard in self.shards:
            verify_file(shard.locate(root), shard.bytes, shard.sha256, level)

    def part(self, name: str) -> list[Shard]:
        """The shards of one part, in order."""
        return [shard for shard in self.shards if shard.part == name]

    def split(self, name: str) -> list[Shards]:
        """One artifact per shard of a part, what mapped tasks take as input.

        They carry no facts, so that a shard's digest does not change when other shards do.
        """
        return [Shards(shards=(shard,)) for shard in self.part(name)]

    @property
    def label(self) -> str:
        """The first shard's file name without its ending, for names of task runs."""
        return Path(self.shards[0].path).stem

    def rows(self, part: str) -> int:
        """Number of rows in a part."""
        return sum(shard.rows for shard in self.part(part))

    def tables(self, part: str) -> Iterator[pa.Table]:
        """The checked tables of a part, one shard at a time.

        Raises:
            ArtifactInvalid: a shard is missing, altered, or not of its contract.
        """
        for shard in self.part(part):
            path = shard.locate()
            verify_file(path, shard.bytes, shard.sha256, "sha256")
            yield read_table(path, REGISTRY[shard.contract])

    def table(self, part: str) -> pa.Table:
        """A whole part in memory; for parts that are small by nature.

        Raises:
            ArtifactInvalid: as `tables`, or the artifact has no such part.
        """
        tables = list(self.tables(part))
        if not tables:
            raise ArtifactInvalid(f"the artifact has no part {part!r}, only {sorted({s.part for s in self.shards})}")
        return pa.concat_tables(tables)

    def file(self, part: str) -> Path:
        """The verified file of a part that has exactly one.

        Raises:
            ArtifactInvalid: missing, altered, or not exactly one.
        """
        found = self.part(part)
        if len(found) != 1:
            raise ArtifactInvalid(f"part {part!r} has {len(found)} files, one was expected")
        path = found[0].locate()
        verify_file(path, found[0].bytes, found[0].sha256, "sha256")
        return path


class SourceFile(BaseModel):
    """A file from outside the store, known by its content: a moved or renamed copy is the same input."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str] = "source-file"
    path: str
    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> SourceFile:
        """Hash a file that exists."""
        return cls(path=str(path), sha256=sha256_file(path), bytes=path.stat().st_size)

    def digest(self) -> str:
        """Hex SHA-256 of the bytes."""
        return self.sha256
