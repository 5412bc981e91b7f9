"""A server that speaks as vLLM, SGLang or llama.cpp do, and answers with eyas' own loop on a small target."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tasks.benchmark.batch import Answer, DecodeSettings
from tasks.benchmark.decode import decode
from tasks.benchmark.drafters import Drafter
from tasks.formats.codec import Codec
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt

Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Behaviour:
    """What the server does beyond answering."""

    engine: str = "vllm"
    model: str = "target"
    counts_in_response: bool = True
    dies_after: int = -1  # answers, after which it breaks off every stream
    foreign_tokens: int = 0  # that somebody else makes it generate with every answer
    shift: int = 0  # added to every token from the third on, as if another model spoke
    metrics: dict[str, float] = field(default_factory=dict)
    answers: int = 0


class SpeakingServer:
    """Answers with real speculative decoding.

    Args:
        target: the model.
        make: a fresh drafter for each request.
        chain: drafted tokens per verify step.
        codec: of the target.
        behaviour: see there.
    """

    def __init__(
        self, target: Target, make: Callable[[], Drafter], chain: int, codec: Codec, behaviour: Behaviour
    ) -> None:
        self.target, self.make, self.chain, self.codec, self.behaviour = target, make, chain, codec, behaviour
        self.lock = threading.Lock()

    def speak(self, ids: list[int], temperature: float, max_tokens: int) -> Answer:
        """The answer to ids, counted."""
        settings = DecodeSettings((temperature,), self.chain, max_tokens, tuple(self.target.facts["eos_ids"]), 0)
        with self.lock:
            answer = decode(
                self.target, self.make(), "trained", [RenderedPrompt("0" * 32, "chat", tuple(ids))], settings
            )[0]
            self.behaviour.answers += 1
            said, metrics = answer.output_ids, self.behaviour.metrics
            if self.behaviour.shift:
                answer.output_ids = [*said[:2], *((token + self.behaviour.shift) % 1000 for token in said[2:])]
            for name, value in {
                "drafts": answer.verify_steps,
                "draft_tokens": answer.drafted,
                "accepted_tokens": answer.accepted,
                "generated": len(said) + self.behaviour.foreign_tokens,
                **{f"position{place}": count for place, count in enumerate(answer.accepted_by_position)},
            }.items():
                metrics[name] = metrics.get(name, 0) + value
        return answer

    def page(self) -> str:
        """The counters as Prometheus text."""
        prefix = self.behaviour.engine
        generated = {"vllm": "generation_tokens", "llamacpp": "tokens_predicted", "sglang": "generation_tokens"}
        with self.lock:
            held = dict(self.behaviour.metrics)
        lines = [f"# HELP {prefix}", f"{prefix}:{generated[prefix]}_total {held.get('generated', 0)}"]
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            lines.append(f'{prefix}:spec_decode_num_{name}_total{{engine="0",model="m"}} {float(held.get(name, 0))}')
        for place in range(self.chain):
            name = f'{prefix}:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}",engine="0"}}'
            lines.append(f"{name} {float(held.get(f'position{place}', 0))}")
        return "\n".join(lines) + "\n"

    def events(self, answer: Answer, max_tokens: int) -> Iterator[dict[str, Any]]:
        """The stream of one answer."""
        finish = "stop" if answer.output_ids[-1] in self.target.facts["eos_ids"] else "length"
        steps = _histogram(answer, self.chain)
        match self.behaviour.engine:
            case "vllm":
                for token in answer.output_ids:
                    yield {"choices": [{"token_ids": [token], "finish_reason": None}]}
                yield {"choices": [{"token_ids": [], "finish_reason": finish}]}
                counts = {"acceptance_histogram": steps, "num_draft_tokens": answer.drafted}
                has = self.behaviour.counts_in_response and self.chain
                yield {"choices": [], "usage": {}} | ({"metrics": {"speculative_decoding": counts}} if has else {})
            case "sglang":
                for count in range(1, len(answer.output_ids)):
                    yield {"output_ids": answer.output_ids[:count], "meta_info": {"finish_reason": None}}
                meta: dict[str, Any] = {"finish_reason": {"type": finish}}
                if self.chain:
                    meta |= {"spec_correct_drafts_histogram": steps, "spec_num_proposed_drafts": answer.drafted}
                yield {"output_ids": answer.output_ids, "meta_info": meta}
            case "llamacpp":
                for token in answer.output_ids:
                    yield {"tokens": [token], "stop": False}
                stop = {"stop": "eos", "length": "limit"}[finish]
                yield {"tokens": [], "stop": True, "stop_type": stop, "timings": {"draft_n": answer.drafted}}


def _histogram(answer: Answer, chain: int) -> list[int]:
    before = [answer.verify_steps, *answer.accepted_by_position, 0]
    return [before[place] - before[place + 1] for place in range(chain + 1)]


@contextmanager
def speaking(server: SpeakingServer) -> Iterator[str]:
    """The URL of the server, for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            pages = {
                "/v1/models": json.dumps({"data": [{"id": server.behaviour.model}]}),
                "/metrics": server.page(),
                "/health": "",
            }
            self._reply(pages[self.path])

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/tokenize":
                ids = server.codec.encode([body.get("content", body.get("prompt"))])[0]
                self._reply(json.dumps({"tokens": list(ids)}))
                return
            sampling = body.get("sampling_params", body)
            most = sampling.get("max_new_tokens", sampling.get("n_predict", sampling.get("max_tokens")))
            answer = server.speak(body.get("prompt", body.get("input_ids")), sampling["temperature"], most)
            events = list(server.events(answer, most))
            if 0 <= server.behaviour.dies_after < server.behaviour.answers:
                events = events[: len(events) // 2]
            self._reply("".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

        def _reply(self, text: str) -> None:
            content = text.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
