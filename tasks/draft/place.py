"""Where a parent draft's files are: a local folder, or a snapshot of a Hugging Face id. Nothing is loaded here."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import DraftError
from schemas.sections import ParentSpec
from tasks.artifacts.artifact import SourceFile
from tasks.draft.checkpoint import CONFIG
from tasks.draft.record import RECORD
from tasks.draft.stored import INDEX, weight_files

_WANTED = (CONFIG, RECORD, INDEX, "*.safetensors")


def locate_parent(spec: ParentSpec) -> list[SourceFile]:
    """The files of a parent, by content; a Hugging Face id is downloaded first.

    Raises:
        DraftError: the folder holds no draft, or the id cannot be downloaded.
    """
    folder = parent_folder(spec)
    if not (folder / CONFIG).is_file():
        raise DraftError(f"{folder} has no {CONFIG}: draft.parent.model must be the folder of an exported draft")
    record = [folder / RECORD] if (folder / RECORD).is_file() else []
    return [SourceFile.of(path) for path in (folder / CONFIG, *weight_files(folder), *record)]


def parent_folder(spec: ParentSpec) -> Path:
    """The folder of a parent.

    Raises:
        DraftError: a path that is no folder, an id without revision, or one that cannot be downloaded.
    """
    folder = Path(spec.model).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or spec.model.startswith((".", "~")):
        raise DraftError(f"draft.parent.model is {spec.model}, which is not a folder")
    if not spec.revision:
        raise DraftError(
            f"draft.parent.model is the Hugging Face id {spec.model}: give draft.parent.revision too, so that the run "
            "starts from the same weights every time"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(spec.model, revision=spec.revision, allow_patterns=list(_WANTED)))
    except (HfHubHTTPError, HFValidationError, OSError) as exc:
        raise DraftError(
            f"draft.parent.model is {spec.model}, which is no folder here and cannot be fetched as a Hugging Face id: "
            f"{exc}"
        ) from exc
