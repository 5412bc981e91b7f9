"""The fake server in the place of an engine: takes an engine's arguments.

python -m tests.engines.fake_engine ENGINE ARGUMENTS --vocabulary FILE [--start-seconds N] [--die-when-asked]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from pathlib import Path

from tests.servers.answers import Vocabulary
from tests.servers.fake import serve
from tests.servers.faults import Faults
from tests.servers.routes import Options, Routes


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--served-model-name")
    parser.add_argument("--port", type=int)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--start-seconds", type=float, default=0)
    parser.add_argument("--die-when-asked", action="store_true")
    said, _ = parser.parse_known_args()
    print(f"process {os.getpid()}", flush=True)
    time.sleep(said.start_seconds)
    reading, _writing = os.pipe()
    os.dup2(reading, 0)  # the fake server ends with its standard input
    options = Options(**{"model": said.served_model_name} | said.options)
    routes = Routes(options, Vocabulary.load(said.vocabulary), Faults([], 0))
    if said.die_when_asked:
        threading.Thread(target=_die_when_asked, args=(routes,), daemon=True).start()
    asyncio.run(serve(said.port, routes))


def _die_when_asked(routes: Routes) -> None:
    while not routes.account.summary()["requests"]:
        time.sleep(0.1)
    print("out of memory", flush=True)
    os._exit(9)


if __name__ == "__main__":
    main()
