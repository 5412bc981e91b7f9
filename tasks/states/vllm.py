"""States from a vLLM server that was started with the method `extract_hidden_states`: it writes a file per request.

The server gives the last layer's output before the final norm; the norm is applied here.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from schemas.errors import EngineError
from schemas.extraction import ExtractionSpec
from tasks.engines.launch import served_models
from tasks.states.asking import StateServer, in_order
from tasks.states.source import AUX_STATES, Asked, Captured, TopTokens
from tasks.target.layers import layer_ids
from tasks.target.parts import HeadParts

CONNECTOR_FOLDER = Path(__file__).with_name("connector")  # on the server's PYTHONPATH
_CONNECTOR = "HiddenStatesConnector"
_CONNECTOR_MODULE = "eyas_hidden_states"
_STATES = AUX_STATES + 1
_HOW = "start it with the method extract_hidden_states for the three layers and the last one, or give extraction.launch"


def server_arguments(layers: Sequence[int], num_layers: int, exchange: Path) -> list[str]:
    """The arguments that make a vLLM server give the outputs of these layers and of the last one.

    Args:
        layers: the auxiliary layers, 0-based.
        num_layers: layers of the target.
        exchange: the folder for its files, which grow by what is asked for until they are read.
    """
    ids = layer_ids([*layers, num_layers - 1], "vllm", num_layers)
    method = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
    }
    transfer = {
        "kv_connector": _CONNECTOR,
        "kv_connector_module_path": _CONNECTOR_MODULE,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(exchange)},
    }
    return ["--speculative-config", json.dumps(method), "--kv-transfer-config", json.dumps(transfer)]


class VllmSource:
    """A vLLM server that gives the three auxiliary states and the last one."""

    def __init__(self, server: StateServer, parts: HeadParts, spec: ExtractionSpec) -> None:
        self._server, self._parts, self._spec = server, parts, spec
        self._model = served_models(server.url)[0]

    def states(self, sequences: Sequence[Asked]) -> Iterator[list[Captured]]:
        """See StateSource."""
        for found in in_order(self._ask, enumerate(sequences), self._spec.concurrency):
            yield [found]

    def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """See StateSource."""
        return list(in_order(lambda ids: self._greedy(ids, max_tokens), prompts, self._spec.concurrency))

    def _greedy(self, ids: Sequence[int], max_tokens: int) -> list[int]:
        answer = self._complete(ids, max_tokens)
        _discard(self._path(answer))
        chosen = answer["choices"][0].get("token_ids")
        if not chosen:
            raise EngineError(f"the server {self._server.url} returned no token ids: a vLLM from 0.10.2 on does")
        return list(chosen)

    def _ask(self, item: tuple[int, Asked]) -> Captured:
        place, asked = item
        path = self._path(self._complete(asked.ids, 1))
        try:
            states = _read(path, asked, self._server.url)
        finally:
            _discard(path)
        aux = states[:, :AUX_STATES].reshape(len(asked.ids), -1).to(torch.bfloat16)
        last = self._parts.normalised(states[asked.taught_from :, AUX_STATES])
        if not self._spec.teacher_top_k:
            return Captured(place, aux, last.to(torch.bfloat16), None)
        top = self._parts.scores(last).log_softmax(-1).topk(self._spec.teacher_top_k, sorted=True)
        return Captured(place, aux, None, TopTokens(top.indices.to(torch.int32), top.values))

    def _complete(self, ids: Sequence[int], max_tokens: int) -> dict[str, Any]:
        body = {"model": self._model, "prompt": list(ids), "max_tokens": max_tokens, "temperature": 0}
        return self._server.ask("/v1/completions", body | {"return_token_ids": True})

    def _path(self, answer: dict[str, Any]) -> Path:
        path = (answer.get("kv_transfer_params") or {}).get("hidden_states_path")
        if not path:
            raise EngineError(f"the server {self._server.url} gave no hidden states: {_HOW}")
        return Path(path)


def _read(path: Path, asked: Asked, url: str) -> Tensor:
    """The states of a request, (length, 4, hidden), once the server has written them."""
    try:
        with open(_lock_of(path), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # held by the server while it writes
            found = load_file(path)
    except (OSError, SafetensorError) as exc:
        raise EngineError(
            f"the states that {url} wrote to {path} cannot be read here: {exc}. Server and eyas must see the same "
            "folder under the same path, and its disk must not be full"
        ) from exc
    ids, states = found["token_ids"].tolist(), found["hidden_states"]
    if ids != list(asked.ids) or len(states) != len(ids):
        raise EngineError(
            f"{url} gave {len(states)} states of {len(ids)} ids for sequence {asked.name}, which has "
            f"{len(asked.ids)} ids; other ids, or states from a cache: do not use this server"
        )
    if states.ndim != 3 or states.shape[1] != _STATES:
        raise EngineError(f"{url} gives {list(states.shape[1:])} per id, {_STATES} states were expected: {_HOW}")
    return states


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _discard(path: Path) -> None:
    """Remove the files of a request, once they are written."""
    lock = _lock_of(path)
    if lock.exists():
        with open(lock, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
    for file in (path, lock):
        if file.exists():
            os.unlink(file)
