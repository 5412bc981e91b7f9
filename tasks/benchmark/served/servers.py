"""The server that a run asks: one that runs already, or one that is started here with the flags of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from schemas.benchmarking import EngineSpec, SpeculationSpec
from schemas.errors import EngineError
from schemas.serving import LaunchSpec
from tasks.benchmark.served.passes import Run
from tasks.engines.launch import launched, served_models

NAME = "target"  # under which a server that is started here serves the target
_NGRAM = 3  # tokens of a suffix that llama.cpp looks up


@dataclass(frozen=True)
class Models:
    """The files that a server loads: folders for vLLM and SGLang, GGUF files for llama.cpp."""

    target: Path
    draft: Path | None


@dataclass(frozen=True)
class Room:
    """What a server must have room for."""

    context: int  # tokens of one request
    requests: int  # in flight
    dtype: str
    threads: int


@dataclass(frozen=True)
class Running:
    """A server that answers; `check` raises EngineError if it was started here and has died."""

    url: str
    model: str
    check: Callable[[], None]


@contextmanager
def server_of(spec: EngineSpec, run: Run, models: Models, room: Room) -> Iterator[Running]:
    """The server of a run, for as long as the block runs.

    Raises:
        EngineError: it cannot be started, has another model, or no server runs without a draft.
    """
    if spec.url:
        url = spec.plain_url if run.drafter == "none" else spec.url
        yield Running(url, named_model(url, spec.model), lambda: None)
        return
    launch = spec.launch or LaunchSpec(engine=spec.engine, dtype=room.dtype)  # pyright: ignore[reportArgumentType]
    flags = [*own_flags(run, models, room), *launch.flags]
    with launched(launch.model_copy(update={"flags": flags}), models.target, NAME) as server:
        yield Running(server.url, server.model, server.check)


def named_model(url: str, name: str) -> str:
    """The model to ask a running server for.

    Raises:
        EngineError: it has not the named one, or several and none is named.
    """
    found = served_models(url)
    if name and name not in found:
        raise EngineError(
            f"the server at {url} serves {', '.join(found) or 'no model'}, not {name}: it was started with another "
            "model, or engines.model is wrong"
        )
    if not name and len(found) != 1:
        raise EngineError(f"the server at {url} serves {', '.join(found) or 'no model'}: say which in engines.model")
    return name or found[0]


def own_flags(run: Run, models: Models, room: Room) -> list[str]:
    """What eyas starts an engine with for a run; a recipe's flags come after these, and win.

    Raises:
        EngineError: the engine cannot do what the run asks.
    """
    maker = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}[run.engine]
    return maker(run, run.speculation, models, room)


def _vllm(run: Run, speculation: SpeculationSpec | None, models: Models, room: Room) -> list[str]:
    flags = ["--max-model-len", str(room.context), "--max-num-seqs", str(room.requests)]
    # cached prompts would make the second pass faster than the first; the model's own sampling rules would hide the
    # target's distribution
    flags += ["--no-enable-prefix-caching", "--generation-config", "vllm"]
    if speculation is None:
        return flags
    if speculation.top_k > 1:
        raise EngineError(f"vLLM verifies chains only, not {speculation.label}: give top_k 1")
    flags += ["--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed"]
    config: dict[str, object] = {"num_speculative_tokens": speculation.steps}
    if run.drafter == "ngram":
        config |= {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    else:
        config |= {"method": "eagle3", "model": str(models.draft)}
    return [*flags, "--speculative-config", json.dumps(config)]


def _sglang(run: Run, speculation: SpeculationSpec | None, models: Models, room: Room) -> list[str]:
    flags = ["--context-length", str(room.context), "--max-running-requests", str(room.requests)]
    flags += ["--disable-radix-cache", "--skip-server-warmup"]
    if speculation is None:
        return flags
    if run.drafter == "ngram":
        return [
            *flags,
            *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(speculation.verified)),
        ]
    return [
        *flags,
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(models.draft)),
        *("--speculative-num-steps", str(speculation.steps), "--speculative-eagle-topk", str(speculation.top_k)),
        *("--speculative-num-draft-tokens", str(speculation.verified)),
    ]


def _llamacpp(run: Run, speculation: SpeculationSpec | None, models: Models, room: Room) -> list[str]:
    flags = ["--context", str(room.context * room.requests), "--parallel", str(room.requests)]
    flags += ["--threads", str(room.threads)]
    if speculation is None:
        return flags
    if speculation.top_k > 1:
        raise EngineError(f"llama.cpp verifies chains only, not {speculation.label}: give top_k 1")
    if run.drafter == "ngram":
        return [*flags, "--ngram", str(_NGRAM), "--draft-tokens", str(speculation.steps)]
    return [*flags, "--draft", str(models.draft), "--draft-tokens", str(speculation.steps)]
