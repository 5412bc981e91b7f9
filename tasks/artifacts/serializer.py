"""Artifact <-> Parquet bytes for Prefect. No pickle, no import path in a file: only the kinds named here are read."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pandera.pandas as pandera
import pyarrow as pa
import pyarrow.parquet as pq
from prefect.serializers import Serializer
from pydantic import Field, ValidationError

from schemas.contract import REGISTRY, Contract
from schemas.errors import ArtifactInvalid
from tasks.artifacts.artifact import SHARDS, Artifact, Rows, Shard, Shards
from tasks.artifacts.files import METADATA_KEY, parquet_bytes
from tasks.artifacts.redaction import redact
from tasks.artifacts.store import LAYOUT

SERIALIZER_TYPE = "eyas-parquet"

FAILURE = Contract(
    "failure",
    pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("type", "message", "traceback")]),
    pandera.DataFrameSchema({"type": pandera.Column(str), "message": pandera.Column(str)}),
)


class ParquetSerializer(Serializer):
    """Writes task results as plain Parquet files whose footer key `eyas` says what they are."""

    type: str = Field(default=SERIALIZER_TYPE, frozen=True)

    def dumps(self, obj: Any) -> bytes:
        """Parquet bytes of an artifact, or of the exception of a failed task.

        Raises:
            TypeError: the task returned something else.
        """
        if isinstance(obj, Artifact):
            head = {
                "kind": obj.kind,
                "layout": LAYOUT,
                "contract": obj.contract if isinstance(obj, Rows) else SHARDS.name,
                "digest": obj.digest(),
                "facts": obj.facts,
                "measures": obj.measures,
                "lineage": json.loads(redact(json.dumps(obj.lineage))),
                **({"provisional": True} if obj.provisional else {}),
            }
            table = obj.to_table()
        elif isinstance(obj, BaseException):
            head = {"kind": "failure", "layout": LAYOUT, "contract": FAILURE.name}
            text = redact("".join(traceback.format_exception(obj)))
            table = FAILURE.table([{"type": type(obj).__qualname__, "message": redact(str(obj)), "traceback": text}])
        else:
            raise TypeError(f"a task must return an artifact (Rows or Shards), not {type(obj).__name__}")
        return parquet_bytes(table, {METADATA_KEY: json.dumps(head, sort_keys=True).encode()})

    def loads(self, blob: bytes) -> Any:
        """The artifact, or an exception that tells the stored failure.

        Raises:
            ArtifactInvalid: the bytes are not a result that this eyas wrote.
        """
        try:
            table = pq.read_table(pa.BufferReader(blob))
            head = json.loads((table.schema.metadata or {})[METADATA_KEY])
        except (pa.ArrowInvalid, OSError, KeyError, ValueError) as exc:
            raise ArtifactInvalid(f"not a result of eyas: {exc}") from exc
        table = table.replace_schema_metadata(None)
        layout = head.get("layout") if isinstance(head, dict) else None
        if layout != LAYOUT:
            raise ArtifactInvalid(f"the result has layout {layout!r}, this eyas reads {LAYOUT}")
        try:
            return _restore(head, table)
        except ValidationError as exc:
            raise ArtifactInvalid(f"the result's header cannot be used: {exc}") from exc


def _restore(head: dict[str, Any], table: pa.Table) -> Artifact | Exception:
    shared: dict[str, Any] = {name: head.get(name, {}) for name in ("facts", "measures", "lineage")}
    shared["provisional"] = head.get("provisional", False)
    match head.get("kind"):
        case "failure":
            row = FAILURE.check(table, "stored failure").to_pylist()[0]
            return RuntimeError(f"{row['type']}: {row['message']}")
        case "rows" if head.get("contract") in REGISTRY:
            contract = REGISTRY[head["contract"]]
            return Rows(contract=contract.name, table=contract.check(table, "stored result"), **shared)
        case "shards":
            SHARDS.check(table, "stored manifest")
            return Shards(shards=tuple(Shard(**row) for row in table.to_pylist()), **shared)
    raise ArtifactInvalid(f"unknown kind {head.get('kind')!r} or contract {head.get('contract')!r}")
