"""The draft that training goes on from: its files checked against the target and brought into our layout.

Weights keep their bytes and the vocabulary its ids; what cannot be kept is refused by name. Which layers fed it is left
to `tasks.train.warm_start` where its config can be read in two ways.
"""

from __future__ import annotations

from pathlib import Path

from schemas.sections import ParentSpec
from tasks.artifacts.artifact import Shards, SourceFile
from tasks.artifacts.files import verify_file
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.draft.adoption import adopt
from tasks.draft.checkpoint import CONFIG, WEIGHTS
from tasks.draft.place import parent_folder


@artifact_task(version="1")
def adopt_parent(spec: ParentSpec, sources: list[SourceFile], target: Shards) -> Shards:
    """The parent in our layout: parts "config" and "weights" in its own dtype.

    Facts: `readings` (layers by what its ids may mean), `full_vocabulary`, `recorded` (its export's record or None),
    `embedding_sha256` (of the token embeddings it carries, "" without), `layout`, `model`, `revision`.

    Raises:
        DraftError: its files are damaged, of another kind of draft or of another target; names the field or tensor.
        StoreError: the weights would not fit on the disk.
    """
    folder = parent_folder(spec)
    sizes = sum(_checked(Path(source.path), source) for source in sources)
    require_space(sizes, f"taking over the draft {spec.model}")
    space = workspace()
    facts = adopt(folder, target.facts, space.ensure_folder())
    space.add_file("config", CONFIG)
    space.add_file("weights", WEIGHTS)
    local = Path(spec.model).expanduser().is_dir()
    return space.publish(facts | {"model": folder.name if local else spec.model, "revision": spec.revision})


def _checked(path: Path, source: SourceFile) -> int:
    size = path.stat().st_size
    verify_file(path, size, source.sha256, "sha256")
    return size
