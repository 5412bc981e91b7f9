"""Starts flow runs as processes of their own without paying the imports each time: imports once, forks on request.

Reads `RECIPE LOG` lines from standard input; answers `started PID`, and `ended PID CODE` when the child is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import flows.build_draft as preloaded
from flows.command_line import run
from schemas.recipe import load_recipe


def main() -> None:
    """Serve until standard input ends."""
    assert preloaded.build_draft
    assert threading.active_count() == 1, "a fork would lose the other threads"
    print("ready", flush=True)
    for line in sys.stdin:
        recipe, log = line.split()
        child = os.fork()
        if child == 0:
            _run_flow(Path(recipe), Path(log))
        print(f"started {child}", flush=True)
        _, status = os.waitpid(child, 0)
        print(f"ended {child} {os.waitstatus_to_exitcode(status)}", flush=True)


def _run_flow(recipe: Path, log: Path) -> None:
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = 1
    try:
        run(load_recipe(recipe))
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
