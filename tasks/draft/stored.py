"""A draft's weights as others store them: one safetensors file or many with an index, under the names of any layout.

Tensors come back under our names, bytes as they are. Pickled weights are refused: reading them would run their code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from schemas.errors import DraftError

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_OURS, _NUMBERED = "midlayer.", "layers.0."


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a draft, and before them the index if there is one.

    Raises:
        DraftError: there are none, only pickled ones, some are missing, or it is not clear which are meant.
    """
    index, files = folder / INDEX, sorted(folder.glob("*.safetensors"))
    if index.is_file():
        names = sorted(set(_weight_map(index).values()))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise DraftError(f"{folder} lacks {', '.join(missing)}, which {INDEX} names: the download is not complete")
        if WHOLE not in names and (folder / WHOLE).is_file():
            raise DraftError(f"{folder} holds both {WHOLE} and {INDEX}: it is not clear which is meant; remove one")
        return [index, *(folder / name for name in names)]
    if len(files) == 1:
        return files
    if files:
        raise DraftError(f"{folder} holds {len(files)} safetensors files and no {INDEX}: it is not clear what belongs")
    if pickled := sorted(path.name for path in folder.glob("*") if path.suffix in PICKLED):
        raise DraftError(
            f"{folder} has its weights pickled ({', '.join(pickled)}), and unpickling runs whatever code is in them: "
            "convert them to safetensors where you trust them"
        )
    raise DraftError(f"{folder} has no {WHOLE}: it holds no draft")


class StoredTensors:
    """The tensors of open files by our names; each is read when it is asked for."""

    def __init__(self, place: Path, handles: dict[str, Any], numbered: bool) -> None:
        self._handles, self._numbered, self.place = handles, numbered, place

    def names(self) -> set[str]:
        """All names, ours."""
        return set(self._handles)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, without reading the tensor."""
        return tuple(self._handles[name].get_slice(self._stored(name)).get_shape())

    def read(self, name: str) -> Tensor:
        """One tensor, with the dtype in which it is stored."""
        return self._handles[name].get_tensor(self._stored(name))

    def _stored(self, name: str) -> str:
        return _NUMBERED + name.removeprefix(_OURS) if self._numbered and name.startswith(_OURS) else name


@contextmanager
def stored_tensors(folder: Path) -> Iterator[StoredTensors]:
    """Open a draft's files for the block.

    Raises:
        DraftError: a file is damaged, or names of two layouts stand in it; else as `weight_files`.
    """
    with ExitStack() as stack:
        handles: dict[str, Any] = {}
        for path in weight_files(folder):
            if path.name == INDEX:
                continue
            try:
                file = stack.enter_context(safe_open(path, "pt"))
                names = list(file.keys())
            except (OSError, SafetensorError) as exc:
                raise DraftError(f"{path} cannot be read: {exc}") from exc
            if twice := [name for name in names if name in handles]:
                raise DraftError(f"{path} holds {twice[0]}, which another file of {folder} holds too")
            handles |= dict.fromkeys(names, file)
        _check_index(folder, set(handles))
        numbered = any(name.startswith(_NUMBERED) for name in handles)
        if numbered and (both := sorted(name for name in handles if name.startswith(_OURS))):
            raise DraftError(
                f"{folder} holds both {_NUMBERED}* and {_OURS}* ({both[0]}): it is not clear which is meant"
            )
        ours = {_our_name(name): file for name, file in handles.items()}
        yield StoredTensors(folder, ours, numbered)


def numbered_name(name: str) -> str:
    """A name of ours as vLLM's and speculators' layouts write it."""
    return _NUMBERED + name.removeprefix(_OURS) if name.startswith(_OURS) else name


def _our_name(name: str) -> str:
    return _OURS + name.removeprefix(_NUMBERED) if name.startswith(_NUMBERED) else name


def _check_index(folder: Path, found: set[str]) -> None:
    index = folder / INDEX
    if not index.is_file():
        return
    named = set(_weight_map(index))
    if missing := sorted(named - found):
        raise DraftError(f"{folder} lacks the tensors {', '.join(missing)}, which {INDEX} names")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        mapped = json.loads(index.read_bytes())["weight_map"]
        names = set(mapped.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise DraftError(f"{index} is damaged: {exc!r}") from exc
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise DraftError(f"{index} names files outside its folder")
    return mapped
