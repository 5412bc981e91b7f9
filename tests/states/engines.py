"""Servers in the dialects of vLLM and SGLang around a small target in this process: real states, and known faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.target.decoding import decode
from tasks.target.model import Target

Json = dict[str, Any]


class Engine:
    """What both have: the target, the layers that are captured, and what goes wrong."""

    def __init__(self, target: Target, layers: list[int]) -> None:
        self.target, self.layers = target, layers
        self.lost_rows = 0  # of each sequence, at its beginning
        self.busy = 0  # requests that are refused before one is answered
        self.lock = threading.Lock()
        self.asked: list[Json] = []

    def get(self, path: str) -> Json:
        """The answer to a GET."""
        raise NotImplementedError

    def post(self, path: str, body: Json) -> Json:
        """The answer to a POST."""
        raise NotImplementedError

    def states(self, ids: list[int], layers: list[int]) -> tuple[Tensor, Tensor]:
        """States (length, layers·hidden) without those that get lost, and what follows the final norm."""
        aux, last = self.target.capture(torch.tensor([ids]), aux_layers=layers)
        return aux[0, self.lost_rows :], last[0]

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """What the target says."""
        return decode(self.target, [ids], count, eos_ids=self.target.facts["eos_ids"])[0]


class Vllm(Engine):
    """With `extract_hidden_states` and a connector that writes files."""

    def __init__(self, target: Target, layers: list[int], folder: Path) -> None:
        super().__init__(target, layers)
        self.folder = folder
        self.with_path = True
        self.other_ids = False

    def get(self, path: str) -> Json:
        return {"data": [{"id": "tiny"}]}

    def post(self, path: str, body: Json) -> Json:
        ids = body["prompt"]
        tokens = torch.tensor([*ids[:-1], 7] if self.other_ids else ids)
        states, _ = self.states(ids, [*self.layers, len(self.target.layers) - 1])
        with self.lock:
            file = self.folder / f"{len(self.asked)}.safetensors"
            self.asked.append(body)
        # the hook of the last layer sees what the final norm reads
        save_file({"token_ids": tokens, "hidden_states": states.view(len(states), -1, 64).contiguous()}, file)
        Path(f"{file}.lock").touch()
        choice = {"token_ids": self.greedy(ids, body["max_tokens"])}
        found = {"hidden_states_path": str(file)} if self.with_path else None
        return {"choices": [choice], "kv_transfer_params": found}


class Sglang(Engine):
    """With --enable-return-aux-hidden-states."""

    def __init__(self, target: Target, layers: list[int]) -> None:
        super().__init__(target, layers)
        self.settings: Json = {
            "enable_return_aux_hidden_states": True,
            "disable_radix_cache": True,
            "chunked_prefill_size": -1,
            "return_aux_hidden_state_layer_ids": None,
        }

    def get(self, path: str) -> Json:
        return self.settings

    def post(self, path: str, body: Json) -> Json:
        with self.lock:
            self.asked.append(body)
        ids, count = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        meta: Json = {}
        if body.get("return_hidden_states"):
            aux, last = self.states(ids, self.layers)
            start, k = body["logprob_start_len"], body["top_logprobs_num"]
            top = self.target.lm_head(last).log_softmax(-1).topk(k)
            rows = [
                [[score, token, None] for score, token in zip(*pair, strict=True)]
                for pair in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            ]
            # the entry of an input id says what was expected in its place, so the first one has none
            meta["input_top_logprobs"] = [None, *rows[start:-1]]
            meta["output_top_logprobs"] = rows[-1:]
            meta["hidden_states"] = [aux.tolist()]
        return {"output_ids": self.greedy(ids, count), "meta_info": meta}


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """The URL of a server that answers as the engine does, while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(engine))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, engine.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with engine.lock:
                engine.busy -= 1
                busy = engine.busy >= 0
            self._answer(503, {"error": "busy"}) if busy else self._answer(200, engine.post(self.path, body))

        def _answer(self, status: int, content: Json) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
