"""Where each engine is installed: a virtual environment of its own, for engines pin their own torch."""

from __future__ import annotations

import os
from pathlib import Path

from schemas.errors import EngineError

ENGINES = ("llamacpp", "vllm", "sglang")
UNFINISHED = ".unfinished"  # stands in an environment while it is being made


def engines_root() -> Path:
    """The folder of all environments: EYAS_ENGINES, or in the user's cache."""
    return Path(os.environ.get("EYAS_ENGINES") or "~/.cache/eyas/engines").expanduser().resolve()


def python_of(engine: str) -> Path:
    """The Python interpreter of an engine's environment.

    Raises:
        EngineError: the engine is not installed, or only in part.
    """
    folder = engines_root() / engine
    python = folder / "bin" / "python"
    remedy = f"`make engines ENGINES={engine}` installs it, or make a virtual environment there with the build you want"
    if (folder / UNFINISHED).exists():
        raise EngineError(f"the installation of {engine} in {folder} was not finished: {remedy}")
    if not python.exists():
        raise EngineError(f"{engine} is not installed in {folder}: {remedy}")
    return python
