"""Results as Parquet bytes: what goes in comes out, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ArtifactInvalid, ContractViolation
from tasks.artifacts.artifact import Artifact, Rows, Shard, Shards
from tasks.artifacts.files import METADATA_KEY, parquet_bytes
from tasks.artifacts.serializer import ParquetSerializer
from tests.artifacts.pipeline import NUMBERS

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)
facts = st.dictionaries(st.text(), json_values, max_size=3)
measures = st.dictionaries(st.text(min_size=1), st.floats(allow_nan=False), max_size=3)
file_names = st.text("abcdefghij0123456789-", min_size=1, max_size=12)
sha256s = st.text("0123456789abcdef", min_size=64, max_size=64)
shards = st.builds(
    Shard,
    part=st.text(min_size=1, max_size=9),
    contract=st.sampled_from(["test_numbers", "file"]),
    path=file_names.map(lambda name: f"data/task/key/{name}.parquet"),
    sha256=sha256s,
    rows=st.integers(0, 2**62),
    bytes=st.integers(0, 2**62),
)
manifests = st.builds(
    Shards, shards=st.lists(shards, max_size=4, unique_by=lambda s: s.path).map(tuple), facts=facts, measures=measures
)
tables = st.lists(st.integers(0, 2**62), max_size=20).map(lambda ns: NUMBERS.table([{"value": n} for n in ns]))
rows = st.builds(Rows, contract=st.just(NUMBERS.name), table=tables, facts=facts, measures=measures)


def with_head(table: pa.Table, head: Any) -> bytes:
    return parquet_bytes(table, {METADATA_KEY: json.dumps(head).encode()})


@given(st.one_of(manifests, rows))
def test_what_is_written_is_read(artifact: Artifact) -> None:
    serializer = ParquetSerializer()
    found = serializer.loads(serializer.dumps(artifact))
    assert type(found) is type(artifact)
    assert found.to_table().equals(artifact.to_table())
    assert (found.facts, found.measures) == (artifact.facts, artifact.measures)
    assert found.digest() == artifact.digest()


@given(st.one_of(manifests, rows))
def test_equal_artifacts_are_equal_bytes(artifact: Artifact) -> None:
    blob = ParquetSerializer().dumps(artifact)
    assert blob == ParquetSerializer().dumps(artifact.model_copy())
    assert blob.startswith(b"PAR1")


def test_any_parquet_reader_opens_a_result() -> None:
    blob = ParquetSerializer().dumps(Rows(contract=NUMBERS.name, table=NUMBERS.table([{"value": 4}])))
    table = pq.read_table(pa.BufferReader(blob))
    assert table.to_pylist() == [{"value": 4}]
    assert json.loads(table.schema.metadata[METADATA_KEY])["kind"] == "rows"


def test_a_failure_comes_back_as_text() -> None:
    serializer = ParquetSerializer()
    found = serializer.loads(serializer.dumps(ValueError("no good")))
    assert isinstance(found, Exception)
    assert str(found) == "ValueError: no good"


@pytest.mark.parametrize("value", [{"a": 1}, [1], "text", None, pa.table({"a": [1]})])
def test_only_artifacts_are_written(value: Any) -> None:
    with pytest.raises(TypeError, match="must return an artifact"):
        ParquetSerializer().dumps(value)


def test_rows_that_break_their_contract_are_not_written() -> None:
    table = pa.table({"value": pa.array([-1], pa.int64())}, schema=NUMBERS.arrow)
    with pytest.raises(ContractViolation, match="test_numbers"):
        ParquetSerializer().dumps(Rows(contract=NUMBERS.name, table=table))


GOOD = {
    "kind": "rows",
    "layout": 1,
    "contract": NUMBERS.name,
    "digest": "0",
    "facts": {},
    "measures": {},
    "lineage": {},
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "pickle"}, "unknown kind 'pickle'"),
        ({"kind": None}, "unknown kind"),
        ({"contract": "os.system"}, "contract 'os.system'"),
        ({"layout": 2}, "layout 2"),
        ({"layout": None}, "layout None"),
        ({"facts": 3}, "header"),
        ({"kind": "shards"}, "columns are"),
    ],
)
def test_what_eyas_did_not_write_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArtifactInvalid, match=complaint):
        ParquetSerializer().loads(with_head(NUMBERS.table([{"value": 1}]), GOOD | change))


@pytest.mark.parametrize("blob", [b"", b"PAR1", b"\x80\x04K\x01.", parquet_bytes(pa.table({"value": [1]}), {})])
def test_what_is_no_result_is_refused(blob: bytes) -> None:
    with pytest.raises(ArtifactInvalid, match="not a result of eyas"):
        ParquetSerializer().loads(blob)


def test_a_header_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ArtifactInvalid, match="layout None"):
        ParquetSerializer().loads(with_head(NUMBERS.table([{"value": 1}]), [1, 2]))


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.parquet", "data/../../outside.parquet"])
def test_a_manifest_that_points_out_of_the_store_is_refused(path: str) -> None:
    shard = Shard(part="numbers", contract=NUMBERS.name, path=path, sha256="a" * 64, rows=1, bytes=1)
    with pytest.raises(ContractViolation, match="path"):
        ParquetSerializer().dumps(Shards(shards=(shard,)))
