"""Where artifacts live on disk, which layout the store has, and whether there is room for what comes next.

<store>/results/<task>/<key>.parquet        the task's result
<store>/index/<task>/<key>.parquet.json     its commit record
<store>/data/<task>/<key>/...               the shards that a manifest lists
<store>/locks/...                           flock files, freed by the kernel when a process dies
<store>/reports/...                         what people read
<store>/logs/...                            what servers printed that were started for a task, the last time
"""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prefect.settings import get_current_settings

from schemas.errors import StoreError
from tasks.artifacts.files import write_bytes

LAYOUT = 1
_RESERVE_BYTES = 64 * 2**20


def code_version() -> str:
    """The installed version of eyas."""
    try:
        return version("eyas")
    except PackageNotFoundError:
        return "source"


def store_root() -> Path:
    """The store's folder, from Prefect's own result setting at call time, so that no task holds a path.

    Raises:
        StoreError: Prefect's results do not go to a store.
    """
    results = get_current_settings().results.local_storage_path.expanduser().resolve()
    if results.name != "results":
        raise StoreError(
            f"PREFECT_RESULTS_LOCAL_STORAGE_PATH is {results}, which is no store: unset it and set EYAS_STORE to a "
            "folder (or set it to <store>/results), and start again"
        )
    return results.parent


def open_store() -> Path:
    """Create the store if needed, refuse one of another layout, and return its folder.

    Raises:
        StoreError: the folder cannot be written, or another eyas wrote it in another layout.
    """
    root = store_root()
    marker = root / "store.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK):
            raise PermissionError(f"{root} is not writable")
        if not marker.exists():
            write_bytes(marker, json.dumps({"layout": LAYOUT, "eyas": code_version()}, indent=1).encode())
        found = json.loads(marker.read_bytes())
    except (OSError, ValueError) as exc:
        raise StoreError(f"the store {root} cannot be used: {exc}. Set EYAS_STORE to a folder of your own") from exc
    layout, writer = (found.get("layout"), found.get("eyas")) if isinstance(found, dict) else (None, None)
    if layout != LAYOUT:
        raise StoreError(
            f"the store {root} has layout {layout!r}, written by eyas {writer or 'of unknown version'}; "
            f"this eyas {code_version()} reads layout {LAYOUT}. Set EYAS_STORE to a new folder, or use that version"
        )
    return root


def require_space(needed: int, purpose: str) -> None:
    """Refuse to begin work whose forecast does not fit on the store's disk.

    Args:
        needed: forecast in bytes.
        purpose: what is about to be written, for the message.

    Raises:
        StoreError: there is less free space than needed plus a reserve.
    """
    root = store_root()
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if needed + _RESERVE_BYTES > free:
        raise StoreError(
            f"{purpose} needs about {needed / 2**20:,.0f} MiB in {root}, where {free / 2**20:,.0f} MiB are free: "
            "free some space (python -m tasks.artifacts prune), or move the store with EYAS_STORE"
        )
