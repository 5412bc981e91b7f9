"""A process that reads a dataset from a Hub, whose address its libraries take from the environment as they start.

    python -m tests.prompts.streaming JSON

JSON is a recipe's dataset; prints what was read, or the error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.prompts.gather import gather
from tasks.prompts.locate import locate_sources
from tests.servers.hub import Hub

ROOT = Path(__file__).parents[2]


def streamed(hub: Hub, home: Path, **dataset: Any) -> dict[str, Any]:
    """What becomes of a dataset `hub:...`, read in a child with nothing in its cache."""
    bench = home / "bench.jsonl"
    bench.parent.mkdir(parents=True, exist_ok=True)
    bench.write_text(json.dumps({"messages": [{"role": "user", "content": "How many legs has a spider?"}]}))
    specs = [{"name": "chat"} | dataset, {"name": "bench", "source": str(bench), "split": "benchmark"}]
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home / "cache")}
    command = [sys.executable, "-m", "tests.prompts.streaming", json.dumps(specs)]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str]) -> None:
    """Be the child."""
    specs = [DatasetSpec.model_validate(one) for one in json.loads(arguments[0])]
    try:
        found = gather(specs, locate_sources(specs))
    except PromptSourceError as exc:
        print(json.dumps({"error": str(exc)}))
        return
    print(json.dumps({"facts": found.facts(), "messages": [json.loads(one.messages) for one in found.train]}))


if __name__ == "__main__":
    main(sys.argv[1:])
