"""The draft that is measured: found, checked against the target, and kept in the store as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

from schemas.benchmarking import DraftSource
from schemas.errors import DraftError
from tasks.artifacts.artifact import Shards, SourceFile
from tasks.artifacts.find import find_artifact
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_checkpoint
from tasks.draft.fit import check_fit

ARTIFACT = "artifact:"


def locate_draft(source: DraftSource) -> list[SourceFile]:
    """config.json and model.safetensors of the draft, by content; a Hugging Face id is downloaded first.

    Raises:
        DraftError: they are not there.
        StoreError: no artifact has this key, or several.
    """
    folder = _folder(source)
    if not (folder / WEIGHTS).is_file():
        others = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".safetensors"))
        has = f"it has {', '.join(others)}" if others else "it has no weights"
        raise DraftError(f"{folder} has no {WEIGHTS} ({has}): a draft is one safetensors file; pickles are not read")
    if not (folder / CONFIG).is_file():
        raise DraftError(f"{folder} has no {CONFIG}: give the folder of an EAGLE-3 draft")
    return [SourceFile.of((folder / name).resolve()) for name in (CONFIG, WEIGHTS)]


@artifact_task(version="1")
def adopt_draft(files: list[SourceFile], target: Shards, context: int) -> Shards:
    """The draft's two files as parts "config" and "weights".

    Args:
        files: from `locate_draft`.
        target: the prepared target.
        context: tokens that will be asked for.

    Raises:
        DraftError: it is damaged, no EAGLE-3 draft, or not one for this target.
    """
    require_space(sum(file.bytes for file in files), "keeping the draft")
    space = workspace()
    folder = space.ensure_folder()
    for file, name in zip(files, (CONFIG, WEIGHTS), strict=True):
        shutil.copyfile(file.path, folder / name)
    fields = load_checkpoint(folder).config
    check_fit(fields, target.facts, context)
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    return space.publish({"aux_layers": list(fields.aux_layers), "draft_vocab_size": fields.draft_vocab_size})


def _folder(source: DraftSource) -> Path:
    if source.source.startswith(ARTIFACT):
        artifact = find_artifact(source.source.removeprefix(ARTIFACT))
        if not isinstance(artifact, Shards) or not artifact.part("weights"):
            raise DraftError(f"draft.source is {source.source}, which is no exported draft")
        return artifact.file("weights").parent
    folder = Path(source.source).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or source.source.startswith((".", "~")):
        raise DraftError(f"draft.source is {source.source}, which is not a folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        found = snapshot_download(
            source.source, revision=source.revision or None, allow_patterns=["config.json", "*.safetensors"]
        )
    except (HfHubHTTPError, HFValidationError, OSError) as exc:
        raise DraftError(
            f"draft.source is {source.source}, which is no folder here and cannot be fetched as a Hugging Face id: "
            f"{exc}"
        ) from exc
    return Path(found)
