"""The few calls to a Prefect server that its web page makes for starting, retrying and resuming runs."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from tests.e2e.runs import Server

PATIENCE = 240  # seconds, on a busy machine
_ON_THEIR_WAY = ("SCHEDULED", "PENDING", "RUNNING")


class Api:
    """A client of one server."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.api, timeout=30)

    def start(self, deployment: str) -> str:
        """Start a run once the deployment is there; returns the run's id."""
        deadline = time.monotonic() + PATIENCE
        while (answer := self._http.get(f"/deployments/name/{deployment}")).status_code != httpx.codes.OK:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.5)
        return str(self._json("POST", f"/deployments/{answer.json()['id']}/create_flow_run", {})["id"])

    def retry(self, run: str) -> None:
        """What the Retry button does."""
        self._json("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}})

    def resume(self, run: str, values: dict[str, Any]) -> str:
        """Send the form of a paused run; returns whether that was accepted or rejected."""
        return self._json("POST", f"/flow_runs/{run}/resume", {"run_input": values})["status"]

    def form(self, run: str) -> tuple[dict[str, Any], str]:
        """The schema and the description of the form that a paused run shows."""
        keys = self._json("GET", f"/flow_runs/{run}")["state"]["state_details"]["run_input_keyset"]
        deadline = time.monotonic() + PATIENCE
        while (answer := self._http.get(f"/flow_runs/{run}/input/{keys['description']}")).status_code != httpx.codes.OK:
            assert time.monotonic() < deadline, answer.text  # it is saved after the run is paused
            time.sleep(0.2)
        return self._json("GET", f"/flow_runs/{run}/input/{keys['schema']}"), answer.json()

    def tables(self, key: str) -> list[list[dict[str, Any]]]:
        """The table artifacts of a key."""
        found = self._json("POST", "/artifacts/filter", {"artifacts": {"key": {"any_": [key]}}})
        return [json.loads(artifact["data"]) for artifact in found]

    def wait(self, run: str, wanted: str) -> dict[str, Any]:
        """Wait for a state of this type; any other state that lasts is an error."""
        deadline = time.monotonic() + PATIENCE
        while True:
            state = self._json("GET", f"/flow_runs/{run}")["state"]
            if state["type"] == wanted:
                return state
            assert state["type"] in _ON_THEIR_WAY, state
            assert time.monotonic() < deadline, state
            time.sleep(0.5)

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        deadline = time.monotonic() + PATIENCE
        while (answer := self._http.request(method, path, json=body)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
            assert time.monotonic() < deadline, answer.text  # SQLite under load: nothing was done
            time.sleep(0.5)
        answer.raise_for_status()
        return answer.json()
