"""Files that are either whole or absent: atomic writes, hashes, and Parquet tables bound to a contract."""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.contract import Contract
from schemas.errors import ArtifactInvalid

METADATA_KEY = b"eyas"
VerifyLevel = Literal["size", "sha256"]

_verified: set[tuple[str, int, int, int, str]] = set()


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that takes the place of `path` (fsynced) when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_file(path) as handle:
        handle.write(content)


def sync_folder(folder: Path) -> None:
    """Make renames in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def verify_file(path: Path, size: int, sha256: str, level: VerifyLevel) -> None:
    """Check a file's size, and its hash once per process as long as the file does not change.

    Raises:
        ArtifactInvalid: the file is missing or differs.
    """
    try:
        stat = path.stat()
    except FileNotFoundError as exc:
        raise ArtifactInvalid(f"{path} is missing") from exc
    except OSError as exc:
        raise ArtifactInvalid(f"{path} cannot be read: {exc.strerror}") from exc
    if stat.st_size != size:
        raise ArtifactInvalid(f"{path} has {stat.st_size} bytes, {size} were written")
    seen = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino, sha256)
    if level == "size" or seen in _verified:
        return
    if (found := sha256_file(path)) != sha256:
        raise ArtifactInvalid(f"{path} has SHA-256 {found[:12]}…, {sha256[:12]}… was written")
    _verified.add(seen)


def parquet_bytes(table: pa.Table, metadata: dict[bytes, bytes], compression: str = "zstd") -> bytes:
    """A table as the bytes of one Parquet file with exactly this schema metadata; equal input gives equal bytes."""
    sink = io.BytesIO()
    pq.write_table(table.combine_chunks().replace_schema_metadata(metadata or None), sink, compression=compression)
    return sink.getvalue()


def write_table(
    path: Path, table: pa.Table, contract: Contract, *, compression: str = "zstd", rows_per_group: int | None = None
) -> None:
    """Check a table against its contract and write it atomically as Parquet."""
    contract.check(table, str(path))
    with atomic_file(path) as handle:
        pq.write_table(
            _bound(table.combine_chunks(), contract),
            handle,
            compression=compression,
            row_group_size=rows_per_group,
            use_dictionary=_repeating(contract),
        )


@contextmanager
def table_stream(path: Path, contract: Contract, *, compression: str = "zstd") -> Iterator[Callable[[pa.Table], None]]:
    """Write a table piece by piece, a row group for each row; the file appears when the block ends without an error.

    Yields:
        what checks a piece against the contract and writes it.
    """
    schema = _bound(contract.arrow.empty_table(), contract).schema
    with atomic_file(path) as handle:
        options: Any = {"compression": compression, "use_dictionary": _repeating(contract)}
        with pq.ParquetWriter(handle, schema, **options) as writer:
            yield lambda piece: writer.write_table(_bound(contract.check(piece, str(path)), contract), row_group_size=1)


def _bound(table: pa.Table, contract: Contract) -> pa.Table:
    return table.replace_schema_metadata({METADATA_KEY: contract.name.encode()})


def _repeating(contract: Contract) -> Any:
    """Columns whose values repeat.

    A dictionary of ids or of states is tried in vain: it costs a fifth of the time, and makes the file no smaller.
    """
    return [field.name for field in contract.arrow if pa.types.is_string(field.type)]


def read_table(path: Path, contract: Contract) -> pa.Table:
    """Read a Parquet file and check it against its contract.

    Raises:
        ArtifactInvalid: not Parquet, or not of this contract.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as exc:
        raise ArtifactInvalid(f"{path} is not readable Parquet: {exc}") from exc
    return contract.check(table.replace_schema_metadata(None), str(path))
