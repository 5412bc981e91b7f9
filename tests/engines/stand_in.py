"""An engine of the tests' own, where a test needs one that misbehaves: a small HTTP server in the place of a real one.

    python stand_in.py ENGINE'S ARGUMENTS [--start-seconds N] [--die-at-start | --die-after N] [--claims MODEL]

It starts a helper process in a session of its own, as real engines do, and says both process ids.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def main() -> None:
    """Serve."""
    options = _options()
    print("loading", flush=True)
    print("\x1b[33mWARNING\x1b[0m this is a stand-in with OPENROUTER_API_KEY =", os.environ.get("OPENROUTER_API_KEY"))
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(f"processes {os.getpid()} {helper.pid}", flush=True)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.die_at_start:
        sys.exit("RuntimeError: no kernel image is available")
    if options.die_after:
        threading.Timer(options.die_after, lambda: (print("out of memory", flush=True), os._exit(9))).start()
    time.sleep(options.start_seconds)
    names = [options.claims or options.served_model_name or options.alias]
    ThreadingHTTPServer((options.host, options.port), _handler(names)).serve_forever()


def _handler(names: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = {"data": [{"id": name} for name in names]} if self.path == "/v1/models" else {}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

    return Handler


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for flag in ("--host", "--model", "--model-path", "--served-model-name", "--alias", "--dtype", "--claims", "-m"):
        parser.add_argument(flag, default="")
    parser.add_argument("--port", type=int)
    parser.add_argument("--start-seconds", type=float, default=0)
    parser.add_argument("--die-after", type=float, default=0)
    parser.add_argument("--die-at-start", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
