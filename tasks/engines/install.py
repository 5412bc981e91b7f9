"""Installs engines for this machine's CPU, each into an environment of its own, once.

    python -m tasks.engines.install [ENGINE...]

An environment that was not finished, or that was made of another list of packages, is made anew; one that somebody else
made is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from schemas.errors import EngineError, EyasError
from tasks.artifacts.files import write_bytes
from tasks.engines.environments import ENGINES, UNFINISHED, engines_root

_REQUIREMENTS = Path(__file__).with_name("requirements")
_STAMP = ".made-of"
_CHECKS = {
    "llamacpp": "import xllamacpp",
    "vllm": "import vllm",
    # SGLang imports torchvision, of which PyPI has only builds that ask for CUDA
    "sglang": "import torch, importlib.util as u; assert u.find_spec('sglang') and u.find_spec('transformers')",
}
_OUTPUT_CHARACTERS = 3000


def install(engine: str) -> bool:
    """Install an engine unless it is there; whether anything was done.

    Raises:
        EngineError: it cannot be installed; with the end of what was said.
    """
    folder, requirements = engines_root() / engine, _REQUIREMENTS / f"{engine}.txt"
    content = requirements.read_text()
    stamp = hashlib.sha256(f"{sys.version_info[:2]} {content}".encode()).hexdigest()
    with _only_one(engine):
        unfinished = folder / UNFINISHED
        if folder.exists() and not unfinished.exists():
            made_of = (folder / _STAMP).read_text() if (folder / _STAMP).is_file() else stamp
            if made_of == stamp:
                return False
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        unfinished.touch()
        _run(engine, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
        python = folder / "bin" / "python"
        # torch with what it asks for: which packages these are depends on the build that the index has
        for torch in (line for line in content.splitlines() if line.startswith("torch==")):
            _pip(engine, python, [torch])
        _pip(engine, python, ["--no-deps", "-r", str(requirements)])
        _run(engine, [str(python), "-c", _CHECKS[engine]])
        write_bytes(folder / _STAMP, stamp.encode())
        unfinished.unlink()
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Install; 1 with the reason if one cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m tasks.engines.install", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}; all if none is named")
    names = parser.parse_args(arguments).engines or list(ENGINES)
    if unknown := sorted(set(names) - set(ENGINES)):
        parser.error(f"no engine is called {unknown[0]}: choose of {', '.join(ENGINES)}")
    for name in names:
        started = time.monotonic()
        print(f"{name}: ", end="", flush=True)
        try:
            done = install(name)
        except EyasError as exc:
            print(f"error: {exc}", file=sys.stderr)
            return 1
        took = f"installed in {time.monotonic() - started:.0f} s" if done else "is there"
        print(f"{took} ({engines_root() / name})", flush=True)
    return 0


@contextlib.contextmanager
def _only_one(engine: str) -> Iterator[None]:
    """Of all processes that install an engine, one at a time."""
    engines_root().mkdir(parents=True, exist_ok=True)
    with open(engines_root() / f".{engine}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip(engine: str, python: Path, packages: Sequence[str]) -> None:
    quietly = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-compile", "--no-cache-dir"]
    _run(engine, [sys.executable, "-m", "pip", "--python", str(python), "install", *quietly, *packages])


def _run(engine: str, command: Sequence[str]) -> None:
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode:
        said = ended.stdout[-_OUTPUT_CHARACTERS:].strip()
        raise EngineError(f"{engine} cannot be installed: {' '.join(command)} ended with {ended.returncode}:\n{said}")


if __name__ == "__main__":
    sys.exit(main())
