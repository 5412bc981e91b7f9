"""The folder in which an artifact task builds its shards. A kill at any line loses no file that was written whole."""

from __future__ import annotations

import contextvars
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.contract import Contract
from schemas.errors import ArtifactInvalid, StoreError
from tasks.artifacts.artifact import FILE, Shard, Shards
from tasks.artifacts.files import sha256_file, sync_folder, table_stream, verify_file, write_bytes, write_table
from tasks.artifacts.store import store_root

_PUBLISHED = ".published.json"  # the finished manifest, from `publish` until the result is stored


class Workspace:
    """The folder of a running artifact task: `<store>/data/<task>/<key>.part` until `publish`, then without `.part`.

    What an earlier, killed attempt of the same task left there is still there, so that a long task can go on.
    """

    def __init__(self, key: str) -> None:
        self.final = store_root() / "data" / key.removesuffix(".parquet")
        self.folder = self.final.with_name(self.final.name + ".part")
        self._files: list[tuple[str, str, Path, int]] = []

    def ensure_folder(self) -> Path:
        """The folder, which is created."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def path(self, name: str) -> Path:
        """A path inside the folder, which is created."""
        return self.ensure_folder() / name

    def add_table(self, part: str, name: str, table: pa.Table, contract: Contract, **options: Any) -> None:
        """Write a table of the result atomically and list it."""
        path = self.path(name)
        write_table(path, table, contract, **options)
        self._files.append((part, contract.name, path, table.num_rows))

    @contextmanager
    def stream_table(
        self, part: str, name: str, contract: Contract, *, compression: str = "zstd"
    ) -> Iterator[Callable[[pa.Table], None]]:
        """Write a table of the result piece by piece, see `table_stream`, and list it when the block ends."""
        path, rows = self.path(name), 0
        with table_stream(path, contract, compression=compression) as write:

            def counted(piece: pa.Table) -> None:
                nonlocal rows
                write(piece)
                rows += piece.num_rows

            yield counted
        self._files.append((part, contract.name, path, rows))

    def add_file(self, part: str, name: str) -> None:
        """List a file of the result that was written (atomically) at `path(name)`."""
        self._files.append((part, FILE, self.path(name), 0))

    def publish(
        self,
        facts: dict[str, Any] | None = None,
        measures: dict[str, float] | None = None,
        *,
        provisional: bool = False,
    ) -> Shards:
        """Move the listed files to their final place, drop the rest, and return the manifest."""
        root = store_root()
        shards = tuple(
            Shard(
                part=part,
                contract=contract,
                path=str((self.final / path.relative_to(self.folder)).relative_to(root)),
                sha256=sha256_file(path),
                rows=rows,
                bytes=path.stat().st_size,
            )
            for part, contract, path, rows in self._files
        )
        manifest = Shards(shards=shards, facts=facts or {}, measures=measures or {}, provisional=provisional)
        write_bytes(self.path(_PUBLISHED), manifest.model_dump_json().encode())
        self._settle(manifest)
        return manifest

    def recover(self) -> Shards | None:
        """What an earlier attempt published that was killed before its result was stored, if every file is whole."""
        for folder in (self.folder, self.final):
            published = folder / _PUBLISHED
            try:
                manifest = Shards.model_validate_json(published.read_bytes())
                if manifest.provisional:  # it would be done again anyway
                    published.unlink()
                    continue
                for shard in manifest.shards:
                    verify_file(folder / self._name(shard), shard.bytes, shard.sha256, "sha256")
            except FileNotFoundError:
                continue
            except (ArtifactInvalid, ValueError):
                published.unlink()
                continue
            if folder == self.folder:
                self._settle(manifest)
            return manifest
        return None

    def tidy(self) -> None:
        """Remove what only an unfinished task needs; called once the result is stored."""
        (self.final / _PUBLISHED).unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _settle(self, manifest: Shards) -> None:
        kept = {self.folder / self._name(shard) for shard in manifest.shards} | {self.folder / _PUBLISHED}
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path not in kept and path.is_file():
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if self.final.exists():
            shutil.rmtree(self.final)
        self.folder.rename(self.final)
        sync_folder(self.final.parent)

    def _name(self, shard: Shard) -> Path:
        return shard.locate().relative_to(self.final)


_current: contextvars.ContextVar[Workspace] = contextvars.ContextVar("eyas_workspace")


def workspace() -> Workspace:
    """The folder of the artifact task that is running.

    Raises:
        StoreError: no artifact task is running.
    """
    try:
        return _current.get()
    except LookupError:
        raise StoreError("workspace() was called outside an artifact task") from None


@contextmanager
def working_in(folder: Workspace) -> Iterator[None]:
    """Make this the folder that `workspace()` returns."""
    token = _current.set(folder)
    try:
        yield
    finally:
        _current.reset(token)
