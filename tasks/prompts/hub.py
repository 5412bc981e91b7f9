"""Rows of a dataset of the Hugging Face Hub, streamed: little more is fetched than is read, Parquet by a few megabytes.

A Hub source is known by repository, commit, configuration and split, not by its bytes, which nobody has before they are
streamed. With a limit, rows come from a seeded shuffle buffer: the same rows every time, from near the beginnings of
its files, since their length is not known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.prompts.adapters import adapter_of
from tasks.prompts.records import Record, Records, SourceDamaged

HUB = "hub:"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHUFFLED = 1000  # rows in the shuffle buffer
_SEED = 0
_FETCHED = 4 * 2**20  # bytes of a Parquet file that are asked for together


class HubSource(BaseModel):
    """What is streamed: all of it counts in a cache key, and says the content as the commit is pinned."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str] = "hub-source"
    repo: str
    file: str
    revision: str
    config: str
    split: str


def hub_source(dataset: DatasetSpec, named: str) -> HubSource:
    """The source that `hub:OWNER/NAME`, or `hub:OWNER/NAME/path/of/a/file`, stands for.

    Raises:
        PromptSourceError: the name is incomplete, or no commit is given.
    """
    owner, _, rest = dataset.source.removeprefix(HUB).partition("/")
    name, _, file = rest.partition("/")
    if not owner or not name:
        raise PromptSourceError(f"{named}: must be hub:OWNER/NAME, or hub:OWNER/NAME/path/of/a/file")
    if not _COMMIT.fullmatch(dataset.revision):
        raise PromptSourceError(
            f"{named}: revision is {dataset.revision!r}; give the commit, 40 hex digits (on the dataset's page under "
            "Files and versions, History), so that the run reads the same rows every time"
        )
    adapter = adapter_of(dataset)
    return HubSource(
        repo=f"{owner}/{name}",
        file=file,
        revision=dataset.revision,
        config=dataset.config or ("" if file else adapter.hub_config),
        split=dataset.hub_split or ("train" if file else adapter.hub_split),
    )


def open_hub(source: HubSource, wanted: Collection[str], shuffled: bool) -> Records:
    """The records of a Hub source; of its columns only the wanted ones, where it declares them.

    Raises:
        SourceDamaged: it cannot be had; also while the records are read.
    """
    stream = _fetch(source)
    if shuffled:
        stream = stream.shuffle(seed=_SEED, buffer_size=_SHUFFLED)
    names = tuple(stream.column_names or ())
    columns = [name for name in names if name in wanted]
    return Records(_rows(stream.select_columns(columns) if columns else stream, source), names)


def _fetch(source: HubSource) -> Any:
    import pyarrow as pa
    from pyarrow.dataset import ParquetFragmentScanOptions

    try:
        from datasets import load_dataset_builder
    except ImportError:
        raise SourceDamaged("needs the package datasets: run pip install datasets") from None
    try:
        builder: Any = load_dataset_builder(
            source.repo, name=source.config or None, data_files=source.file or None, revision=source.revision
        )
        if hasattr(builder.config, "fragment_scan_options"):  # Parquet's; its own would fetch 128 MiB at a time
            ahead = pa.CacheOptions(prefetch_limit=1, range_size_limit=_FETCHED)
            builder.config.fragment_scan_options = ParquetFragmentScanOptions(cache_options=ahead)
        return builder.as_streaming_dataset(split=source.split)
    except _failures() as exc:
        raise SourceDamaged(_told(source, exc)) from exc


def _rows(stream: Any, source: HubSource) -> Iterator[Record]:
    failures = _failures()
    try:
        for number, row in enumerate(stream, start=1):
            yield Record(f"row {number}", b"", row, columnar=True)
    except failures as exc:
        raise SourceDamaged(_told(source, exc)) from exc


def _failures() -> tuple[type[Exception], ...]:
    """What fetching raises: no network, no such repository, configuration, split or file, or damaged data."""
    import httpx
    import pyarrow as pa
    from datasets.exceptions import DatasetsError

    return OSError, EOFError, ValueError, pa.ArrowException, httpx.HTTPError, DatasetsError


def _told(source: HubSource, exc: Exception) -> str:
    where = f"{source.repo} at {source.revision[:12]}, configuration {source.config or 'default'}, split {source.split}"
    return f"cannot be streamed ({where}): {type(exc).__name__}: {exc}; look at the names, the network and access"
