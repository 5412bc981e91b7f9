"""An artifact of the store by its key, or the beginning of it, as a person writes it into a recipe."""

from __future__ import annotations

from schemas.errors import ArtifactInvalid, StoreError
from tasks.artifacts.artifact import Artifact
from tasks.artifacts.catalog import existing_store, scan
from tasks.artifacts.index import load_verified


def find_artifact(name: str) -> Artifact:
    """The artifact of a key, with every file checked.

    Raises:
        StoreError: no artifact has this key, or several, or it is damaged.
    """
    try:
        return load_verified(scan(existing_store()).find(name).key, "sha256")[1]
    except KeyError as exc:
        raise StoreError(str(exc.args[0])) from None
    except (ArtifactInvalid, FileNotFoundError) as exc:
        raise StoreError(f"the artifact {name} cannot be used: {exc}") from exc
