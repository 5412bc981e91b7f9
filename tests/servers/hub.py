"""A Hugging Face Hub with one dataset at one commit, as far as streaming a dataset asks for it; notes what was asked.

Files are those of a folder. Nothing but the commit has them: any other revision is not found.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Hub(ThreadingHTTPServer):
    """The server; `requests` are methods and paths in order, `bytes_sent` of files only."""

    daemon_threads = True

    def __init__(self, repo: str, commit: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.commit, self.folder = repo, commit, folder
        self.requests: list[tuple[str, str]] = []
        self.bytes_sent = 0

    @property
    def url(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def tree(self, below: str = "", recursive: bool = True) -> list[dict[str, Any]]:
        """The files and folders below a folder of the repository, as the commit's tree lists them."""
        top = self.folder / below
        found = sorted(top.rglob("*") if recursive else top.glob("*"))
        return [self._entry(path) for path in found]

    def _entry(self, path: Path) -> dict[str, Any]:
        entry = {"path": path.relative_to(self.folder).as_posix()}
        if path.is_dir():
            return entry | {"type": "directory", "oid": hashlib.sha1(entry["path"].encode()).hexdigest(), "size": 0}
        content = path.read_bytes()
        return entry | {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}


@contextmanager
def hub(repo: str, commit: str, folder: Path) -> Iterator[Hub]:
    """Serve while the block runs."""
    server = Hub(repo, commit, folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        """Whose requests these are."""
        return cast(Hub, self.server)

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _answer(self) -> None:
        hub, asked = self.hub, urlsplit(self.path)
        path, recursive = unquote(asked.path), parse_qs(asked.query).get("recursive", [""])[0].lower() == "true"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.requests.append((self.command, path))
        api, files = f"/api/datasets/{hub.repo}", f"/datasets/{hub.repo}/resolve/{hub.commit}/"
        if path in (f"{api}/revision/{hub.commit}", api):
            self._json({"id": hub.repo, "sha": hub.commit, "siblings": self._siblings(), "private": False})
        elif path.startswith(f"{api}/tree/{hub.commit}"):
            self._json(hub.tree(path.removeprefix(f"{api}/tree/{hub.commit}").strip("/"), recursive))
        elif path == f"{api}/paths-info/{hub.commit}":
            wanted = json.loads(body)["paths"]
            self._json([one for one in hub.tree() if one["path"] in wanted])
        elif path.startswith(files) and (file := hub.folder / path.removeprefix(files)).is_file():
            self._file(file)
        else:
            self._send(404, b'{"error": "not found"}', {"X-Error-Code": self._code(path)})

    def _code(self, path: str) -> str:
        if self.hub.repo not in path:
            return "RepoNotFound"
        return "EntryNotFound" if self.hub.commit in path else "RevisionNotFound"

    def _siblings(self) -> list[dict[str, str]]:
        return [{"rfilename": one["path"]} for one in self.hub.tree() if one["type"] == "file"]

    def _file(self, file: Path) -> None:
        content = file.read_bytes()
        headers = {
            "X-Repo-Commit": self.hub.commit,
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        status, part = 200, content
        if found := _RANGE.fullmatch(self.headers.get("Range", "")):
            start, stop = int(found[1]), int(found[2] or len(content) - 1) + 1
            status, part = 206, content[start:stop]
            headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        if self.command == "GET":
            self.hub.bytes_sent += len(part)
        self._send(status, part, headers)

    def _json(self, document: Any) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # a reader that has enough goes
                self.wfile.write(body)
