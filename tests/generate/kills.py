"""Runs a scenario of tests.generate.crashing in children that die at every step, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MOMENTS = ("before", "amid", "after")
EVERY_STEP = [  # for parametrize: moment, first step, stride; all of them is slow
    *(pytest.param(moment, 1 + place, 7, id=f"{moment}-some") for place, moment in enumerate(MOMENTS)),
    *(pytest.param(moment, 1, 1, id=f"{moment}-all", marks=pytest.mark.slow) for moment in MOMENTS),
]


class Killer:
    """Asks the process that forks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, scenario: str, folder: Path, step: int, moment: str) -> bool:
        """Whether the child was killed; it ended well otherwise."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{scenario} {folder} {step} {moment}\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, -9)
        return status == -9


@contextmanager
def killer() -> Iterator[Killer]:
    """A process that forks children."""
    command = [sys.executable, "-m", "tests.generate.crashing"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Killer(process)
        assert process.stdin
        process.stdin.close()


def told(folder: Path) -> list[Any]:
    """What children were told to be safe."""
    path = Path(f"{folder}.told")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
