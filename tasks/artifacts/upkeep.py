"""Checks a whole store by hash, and finds and removes what no run needs any more.

An artifact is kept if a run made or used it within the given age, or if a kept artifact was made from it, through any
number of steps. What is locked by a running task is never touched.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ArtifactInvalid
from tasks.artifacts.catalog import Catalog, scan
from tasks.artifacts.files import verify_file
from tasks.artifacts.index import load_verified
from tasks.artifacts.locks import FlockManager

YOUNGEST_TEMPORARY = datetime.timedelta(hours=1)  # a temporary file may be being written by a process without a lock


@dataclass(frozen=True)
class Removal:
    """Something that can go: why, the key whose lock guards it (or none), its files and their size."""

    reason: str  # "unreferenced", "damaged", "unfinished", "failure" or "temporary"
    name: str
    key: str | None
    paths: tuple[Path, ...]
    bytes: int
    newest: datetime.datetime

    def age(self) -> datetime.timedelta:
        """Time since its newest file was written, or its artifact was last used."""
        return datetime.datetime.now(datetime.UTC) - self.newest


def faults(root: Path) -> Iterator[tuple[str, str]]:
    """Check every result and every shard by SHA-256; yields the key and what is wrong with it."""
    catalog = scan(root)
    yield from catalog.damaged.items()
    for entry in catalog.entries.values():
        for shard in entry.shards:
            try:
                verify_file(shard.locate(root), shard.bytes, shard.sha256, "sha256")
            except ArtifactInvalid as exc:
                yield entry.key, str(exc)
        try:
            load_verified(entry.key, "size")
        except ArtifactInvalid as exc:
            if not any(str(shard.locate(root)) in str(exc) for shard in entry.shards):
                yield entry.key, str(exc)


def removable(root: Path, older_than: datetime.timedelta) -> list[Removal]:
    """What can be removed, the largest first."""
    now = datetime.datetime.now(datetime.UTC)
    catalog = scan(root)
    recent = {entry.key for entry in catalog.entries.values() if now - entry.last_used < older_than}
    kept = catalog.ancestors(recent)
    found = [_removal("unreferenced", key, key, _files_of(root, key)) for key in catalog.entries if key not in kept]
    found += [_removal("damaged", key, key, _files_of(root, key)) for key in catalog.damaged]
    found += list(_unfinished(root, catalog))
    found = [removal for removal in found if removal.age() >= older_than]
    gone = {path for removal in found for path in removal.paths}
    for path in root.rglob("*.tmp"):
        removal = _removal("temporary", str(path.relative_to(root)), None, (path,))
        if removal.age() >= max(older_than, YOUNGEST_TEMPORARY) and not gone & set(path.parents):
            found.append(removal)
    return sorted(found, key=lambda removal: -removal.bytes)


def remove(removal: Removal) -> bool:
    """Delete it, its commit record first; False if a running task holds its lock, or it was used after all."""
    locks = FlockManager()
    if removal.key and not locks.acquire_lock(removal.key, "prune", acquire_timeout=0):
        return False
    try:
        if _removal(removal.reason, removal.name, removal.key, removal.paths).newest > removal.newest:
            return False
        for path in removal.paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    finally:
        if removal.key:
            locks.release_lock(removal.key, "prune")
    return True


def _unfinished(root: Path, catalog: Catalog) -> Iterator[Removal]:
    """Results and data without a commit record, and the errors of failed runs."""
    known = catalog.entries.keys() | catalog.damaged.keys()
    for path in sorted(path for path in (root / "results").glob("*") if path.is_file()):
        record = root / "index" / f"{path.name}.json"  # how Prefect keeps the error of a failed run
        paths = tuple(found for found in (record, path) if found.exists())
        yield _removal("failure", str(path.relative_to(root)), None, paths)
    for path in sorted((root / "results").glob("*/*")):
        key = f"{path.parent.name}/{path.name}"
        if key not in known and path.is_file() and path.suffix != ".tmp":
            yield _removal("unfinished", str(path.relative_to(root)), key, (path,))
    for path in sorted((root / "data").glob("*/*")):
        key = f"{path.parent.name}/{path.name.removesuffix('.part')}.parquet"
        if path.is_dir() and (path.suffix == ".part" or key not in known):
            yield _removal("unfinished", str(path.relative_to(root)), key, (path,))


def _files_of(root: Path, key: str) -> tuple[Path, ...]:
    paths = (root / "index" / f"{key}.json", root / "results" / key, root / "data" / key.removesuffix(".parquet"))
    return tuple(path for path in paths if path.exists())


def _removal(reason: str, name: str, key: str | None, paths: tuple[Path, ...]) -> Removal:
    files = [file for path in paths for file in ([path, *path.rglob("*")] if path.is_dir() else [path])]
    stats = [stat for file in files if (stat := _stat(file)) is not None]
    newest = datetime.datetime.fromtimestamp(max((written for written, _ in stats), default=0.0), datetime.UTC)
    return Removal(reason, name, key, paths, sum(size for _, size in stats), newest)


def _stat(path: Path) -> tuple[float, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:  # a running task has just renamed it
        return None
    return stat.st_mtime, 0 if path.is_dir() else stat.st_size
