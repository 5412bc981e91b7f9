"""A server that speaks SGLang's, OpenAI's and OpenRouter's dialects and goes wrong on demand, in a process of its own.

    python -m tests.servers.fake --port 0 [--options JSON] [--faults JSON] [--vocabulary FILE]

Prints its port, and ends when its standard input does, so that it never outlives the test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.answers import Vocabulary
from tests.servers.faults import Fault, Faults
from tests.servers.routes import Options, Routes
from tests.servers.wire import Connection

ROOT = Path(__file__).parents[2]
_BACKLOG = 4096


class FakeServer:
    """A running server, as a test sees it."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port, self.process = port, process
        self.url = f"http://127.0.0.1:{port}"
        self.openrouter = f"{self.url}/api/v1"

    def script(self, *faults: Fault) -> None:
        """From now on go wrong as these say, and no other way."""
        self._ask("faults", [fault.document() for fault in faults])

    def summary(self) -> dict[str, Any]:
        """What was asked, answered and billed so far."""
        return self._ask("summary", None)

    def reset(self) -> None:
        """Forget what was asked and billed."""
        self._ask("reset", None)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()

    def _ask(self, path: str, document: Any) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/_fake/{path}", json.dumps(document).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@contextmanager
def fake_server(*faults: Fault, port: int = 0, vocabulary: Path | None = None, **options: Any) -> Iterator[FakeServer]:
    """Run a server while the block runs; `options` are those of `Options`."""
    command = [sys.executable, "-m", "tests.servers.fake", "--port", str(port), "--options", json.dumps(options)]
    command += ["--faults", json.dumps([fault.document() for fault in faults])]
    command += ["--vocabulary", str(vocabulary)] if vocabulary else []
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    try:
        yield FakeServer(int(process.stdout.readline()), process)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def serve(port: int, routes: Routes) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(routes), "127.0.0.1", port, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()

    def wait_for_parent() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    await ended.wait()
    server.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--faults", type=json.loads, default=[])
    parser.add_argument("--vocabulary", type=Path)
    said = parser.parse_args(arguments)
    options = Options(**said.options)
    vocabulary = Vocabulary.load(said.vocabulary) if said.vocabulary else Vocabulary()
    faults = Faults([Fault(**fault) for fault in said.faults], options.seed)
    asyncio.run(serve(said.port, Routes(options, vocabulary, faults)))


if __name__ == "__main__":
    main()
