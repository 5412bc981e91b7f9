"""The draft that is measured: found, checked against the target, and kept in the store, also as it was given."""

from __future__ import annotations

import shutil
from pathlib import Path

from schemas.benchmarking import DraftSource
from schemas.errors import DraftError
from tasks.artifacts.artifact import Shards, SourceFile
from tasks.artifacts.files import verify_file
from tasks.artifacts.find import find_artifact
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.adoption import adopt
from tasks.draft.checkpoint import CONFIG, WEIGHTS, load_checkpoint, read_fields
from tasks.draft.fit import check_fit
from tasks.draft.foreign import read_foreign_config
from tasks.draft.record import RECORD
from tasks.draft.stored import INDEX, weight_files

ARTIFACT = "artifact:"
GIVEN = "given"  # the part with the draft's own files, which engines are served with
_WANTED = (CONFIG, RECORD, INDEX, "*.safetensors")


def locate_draft(source: DraftSource) -> list[SourceFile]:
    """The draft's files, by content; a Hugging Face id is downloaded first.

    Raises:
        DraftError: they are not there.
        StoreError: no artifact has this key, or several.
    """
    folder = _folder(source)
    if not (folder / CONFIG).is_file():
        raise DraftError(f"{folder} has no {CONFIG}: give the folder of an EAGLE-3 draft")
    record = [folder / RECORD] if (folder / RECORD).is_file() else []
    return [SourceFile.of(path) for path in (folder / CONFIG, *weight_files(folder), *record)]


@artifact_task(version="2")
def adopt_draft(files: list[SourceFile], target: Shards, context: int) -> Shards:
    """The draft in our layout, parts "config" and "weights", and its own files, part "given".

    Args:
        files: from `locate_draft`.
        target: the prepared target.
        context: tokens that will be asked for.

    Raises:
        DraftError: it is damaged, no EAGLE-3 draft, or not one for this target.
    """
    for file in files:
        verify_file(Path(file.path), file.bytes, file.sha256, "sha256")
    require_space(2 * sum(file.bytes for file in files), "keeping the draft")
    space = workspace()
    folder = space.ensure_folder()
    given = folder / GIVEN
    given.mkdir(exist_ok=True)
    for file in files:
        shutil.copyfile(file.path, given / Path(file.path).name)
    foreign = read_foreign_config(read_fields(given / CONFIG))
    check_fit(foreign.fields, target.facts, context)
    facts = adopt(given, target.facts, folder)
    config = load_checkpoint(folder).config
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    for file in files:
        space.add_file(GIVEN, f"{GIVEN}/{Path(file.path).name}")
    return space.publish({"aux_layers": list(config.aux_layers), "readings": facts["readings"]})


def given_folder(draft: Shards) -> Path:
    """The folder with the draft's own files, each checked.

    Raises:
        ArtifactInvalid: a file is missing or altered.
    """
    shards = draft.part(GIVEN)
    for shard in shards:
        verify_file(shard.locate(), shard.bytes, shard.sha256, "sha256")
    return shards[0].locate().parent


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
        return Path(snapshot_download(source.source, revision=source.revision or None, allow_patterns=list(_WANTED)))
    except (HfHubHTTPError, HFValidationError, OSError) as exc:
        raise DraftError(
            f"draft.source is {source.source}, which is no folder here and cannot be fetched as a Hugging Face id: "
            f"{exc}"
        ) from exc
