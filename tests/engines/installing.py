"""Environments of engines in which something of the tests' own stands in the place of the engine."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install_in_place_of(engine: str, root: Path, *command: str) -> None:
    """Make an environment under `root` whose interpreter runs this instead, with the engine's arguments after it."""
    python = root / engine / "bin" / "python"
    python.parent.mkdir(parents=True)
    words = " ".join(f'"{word}"' for word in command)
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{ROOT}"\nexec "{sys.executable}" {words} "$@"\n')
    python.chmod(0o755)
