"""Target and draft as GGUF files for llama.cpp, by the converter that stands in llama.cpp's own source.

The converter runs in a process of its own with this environment's torch, and with what its own environment has beside.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from schemas.errors import EngineError
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.store import require_space
from tasks.artifacts.task import artifact_task, workspace
from tasks.benchmark.served.draft import given_folder
from tasks.engines.environments import python_of
from tasks.target.place import target_folder

FILE = "model.gguf"  # the part "gguf" of both artifacts
_SCRIPT = "convert_hf_to_gguf.py"
_LAST_LINES = 12
_F32_PER_BYTE = 2  # of a checkpoint in bf16
_RUN = "import runpy,sys;sys.path+=[sys.argv.pop(1)];sys.argv.pop(0);sys.path.insert(0,sys.argv.pop(0));" + (
    "runpy.run_path(sys.argv[0],run_name='__main__')"
)


@artifact_task(version="1", exclude=("target_spec",))
def convert_target(target: Shards, target_spec: TargetSpec) -> Shards:
    """The target as one float32 GGUF file, part "gguf".

    Raises:
        EngineError: llama.cpp is not installed, or its converter does not know this model.
    """
    folder = target_folder(target, target_spec)
    return _convert(folder, _size(folder), [])


@artifact_task(version="1", exclude=("target_spec",))
def convert_draft(draft: Shards, target: Shards, target_spec: TargetSpec) -> Shards:
    """The draft as one float32 GGUF file, part "gguf"; the converter reads the target's tokenizer.

    Raises:
        EngineError: llama.cpp is not installed, or its converter refuses this draft.
    """
    folder = given_folder(draft)
    beside = target_folder(target, target_spec)
    return _convert(folder, _size(folder), ["--target-model-dir", str(beside)])


def converter() -> Path:
    """llama.cpp's conversion script in the engine's environment.

    Raises:
        EngineError: llama.cpp is not installed, or without its script.
    """
    environment = python_of("llamacpp").parent.parent
    if found := sorted(environment.glob(f"lib/python3*/site-packages/*/llama.cpp/{_SCRIPT}")):
        return found[0]
    raise EngineError(
        f"{environment} has no {_SCRIPT}, which converts models to GGUF: `make engines ENGINES=llamacpp` installs it"
    )


def _convert(folder: Path, size: int, options: list[str]) -> Shards:
    script = converter()
    require_space(size * _F32_PER_BYTE, f"converting {folder} to GGUF")
    space = workspace()
    out = space.path(FILE)
    site = next(iter(sorted(python_of("llamacpp").parent.parent.glob("lib/python3*/site-packages"))), Path())
    command = [sys.executable, "-c", _RUN, str(site), str(script.parent), str(script), str(folder)]
    command += [*options, "--outtype", "f32", "--outfile", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not out.is_file():
        lines = [line for line in re.split(r"[\r\n]+", done.stderr) if line.strip()][-_LAST_LINES:]
        raise EngineError(f"llama.cpp's converter does not take {folder}; it said:\n" + "\n".join(lines))
    space.add_file("gguf", FILE)
    return space.publish({"outtype": "f32"})


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
