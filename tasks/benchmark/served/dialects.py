"""How each engine is asked for the continuation of ids, and where its stream says tokens, the end and its counts.

Every sampling rule but the temperature is switched off, so that an answer has the target's own distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.errors import EngineError
from tasks.benchmark.served.spoken import Counts

JSON = Mapping[str, Any]


@dataclass
class Heard:
    """A stream as far as it was read."""

    ids: list[int] = field(default_factory=list)
    finish: str = ""
    last: dict[str, Any] = field(default_factory=dict)  # where the engine's counts stand


class Dialect(Protocol):
    """One engine's API."""

    name: str
    path: str
    prefix: str  # of its names on /metrics

    def body(self, model: str, ids: tuple[int, ...], temperature: float, max_tokens: int) -> dict[str, Any]:
        """The request."""
        ...

    def hear(self, event: JSON, heard: Heard) -> None:
        """Take one event of the stream."""

    def counts(self, heard: Heard, steps: int) -> Counts | None:
        """What the response says about `steps` drafted tokens a time, None if nothing."""
        ...

    def tokenise(self, model: str, text: str) -> tuple[str, dict[str, Any]]:
        """Path and request that give the ids of a text under "tokens"."""
        ...


class Vllm:
    """vLLM's text completions, which take ids; its counts come with --per-request-spec-decode-metrics."""

    name, path, prefix = "vllm", "/v1/completions", "vllm:"

    def body(self, model: str, ids: tuple[int, ...], temperature: float, max_tokens: int) -> dict[str, Any]:
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        return {
            "model": model,
            "prompt": list(ids),
            "max_tokens": max_tokens,
            **sampling,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def hear(self, event: JSON, heard: Heard) -> None:
        for choice in event.get("choices") or ():
            heard.ids += choice.get("token_ids") or ()
            heard.finish = choice.get("finish_reason") or heard.finish
        if event.get("metrics"):
            heard.last = event["metrics"]

    def counts(self, heard: Heard, steps: int) -> Counts | None:
        said = heard.last.get("speculative_decoding")
        if not said:
            return None
        return Counts.of_histogram(said["acceptance_histogram"], said["num_draft_tokens"], steps)

    def tokenise(self, model: str, text: str) -> tuple[str, dict[str, Any]]:
        return "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}


class Sglang:
    """SGLang's own /generate; its stream repeats all ids each time, and counts come with every answer."""

    name, path, prefix = "sglang", "/generate", "sglang:"

    def body(self, model: str, ids: tuple[int, ...], temperature: float, max_tokens: int) -> dict[str, Any]:
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        return {"input_ids": list(ids), "sampling_params": {"max_new_tokens": max_tokens, **sampling}, "stream": True}

    def hear(self, event: JSON, heard: Heard) -> None:
        meta = event.get("meta_info") or {}
        if event.get("output_ids") is not None:
            heard.ids = list(event["output_ids"])
        finish = meta.get("finish_reason")
        if isinstance(finish, Mapping):
            heard.finish = finish["type"]
            heard.last = dict(meta)

    def counts(self, heard: Heard, steps: int) -> Counts | None:
        said = heard.last
        histogram = said.get("spec_correct_drafts_histogram", said.get("spec_accept_histogram"))
        proposed = said.get("spec_num_proposed_drafts", said.get("spec_proposed_drafts"))
        if histogram is None or proposed is None:
            return None
        return Counts.of_histogram(histogram, proposed, steps)

    def tokenise(self, model: str, text: str) -> tuple[str, dict[str, Any]]:
        return "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}


class LlamaCpp:
    """llama.cpp's /completion; a response says how many drafts were accepted, only its counters say where."""

    name, path, prefix = "llamacpp", "/completion", "llamacpp:"

    def body(self, model: str, ids: tuple[int, ...], temperature: float, max_tokens: int) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(ids),
            "n_predict": max_tokens,
            "temperature": temperature,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }

    def hear(self, event: JSON, heard: Heard) -> None:
        heard.ids += event.get("tokens") or ()
        if event.get("stop"):
            heard.finish = {"eos": "stop", "word": "stop", "limit": "length"}.get(str(event.get("stop_type")), "")
            heard.last = event.get("timings") or {}

    def counts(self, heard: Heard, steps: int) -> Counts | None:
        return None  # without verify steps there is no acceptance length

    def tokenise(self, model: str, text: str) -> tuple[str, dict[str, Any]]:
        return "/tokenize", {"content": text, "parse_special": True, "add_special": False}


_DIALECTS: dict[str, Dialect] = {one.name: one for one in (Vllm(), Sglang(), LlamaCpp())}


def dialect_of(engine: str) -> Dialect:
    """The API of an engine.

    Raises:
        EngineError: it has none.
    """
    if engine not in _DIALECTS:
        raise EngineError(f"{engine} is no engine with a server")
    return _DIALECTS[engine]
