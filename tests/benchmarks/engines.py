"""Throughput of real vLLM, SGLang and our own decoding on this CPU with SmolLM2, at 1, 8 and 32 requests in flight.

    python -m tests.benchmarks.engines [ENGINE...]

Tokens per second of the wall, and per second of CPU time of all processes of the server, which another load on the
machine changes less. SGLang runs with stand-ins for its kernels (tests/engines/sglang_cpu).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import httpx
import torch

import tests.environment  # noqa: F401 (before Prefect)
from schemas.serving import LaunchedEngine
from tasks.engines.launch import Server, launched
from tasks.target.convert import CONVERTIBLE, convert_wheel
from tasks.target.source import wheel_gguf
from tests.engines.processes import descendants
from tests.engines.real import cpu_launch

NEW_TOKENS = 48
PROMPT = list(range(1000, 1032))
IN_FLIGHT = (1, 8, 32)
_TICKS = os.sysconf("SC_CLK_TCK")


def main(engines: list[str]) -> None:
    """Print one line per engine and number of requests."""
    print(f"{NEW_TOKENS} new tokens after {len(PROMPT)} of the prompt; vLLM takes as many threads as it likes")
    print(f"{'engine':<14}{'in flight':>10}{'tokens/s':>10}{'tokens/CPU-s':>14}{'start s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "smollm2"
        model.mkdir()
        convert_wheel(CONVERTIBLE, wheel_gguf(CONVERTIBLE), model)
        for engine in engines:
            if engine == "transformers":
                _own(model)
                continue
            started = time.perf_counter()
            with launched(cpu_launch(cast(LaunchedEngine, engine)), model, "smollm2") as server:
                seconds = time.perf_counter() - started
                asyncio.run(_ask(server, engine, 2))  # warm
                for count in IN_FLIGHT:
                    _print(engine, count, *asyncio.run(_ask(server, engine, count)), seconds)


async def _ask(server: Server, engine: str, count: int) -> tuple[float, float]:
    """Seconds of the wall and of CPU."""
    family = {server.pid, *descendants(server.pid)}
    cpu, started = _cpu_seconds(family), time.perf_counter()
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
        await asyncio.gather(*(_one(client, server, engine, number) for number in range(count)))
    return time.perf_counter() - started, _cpu_seconds(family) - cpu


async def _one(client: httpx.AsyncClient, server: Server, engine: str, number: int) -> None:
    ids = [*PROMPT[1:], 2000 + number]
    if engine == "sglang":
        sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
        answer = await client.post(f"{server.url}/generate", json={"input_ids": ids, "sampling_params": sampling})
        count = answer.raise_for_status().json()["meta_info"]["completion_tokens"]
    else:
        body = {"model": server.model, "prompt": ids, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
        answer = await client.post(f"{server.url}/v1/completions", json=body)
        count = answer.raise_for_status().json()["usage"]["completion_tokens"]
    assert count == NEW_TOKENS


def _own(folder: Path) -> None:
    """transformers' generate, with a padded batch of equal lengths."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    for count in IN_FLIGHT:
        ids = torch.tensor([[*PROMPT[1:], 2000 + number] for number in range(count)])
        cpu, started = time.process_time(), time.perf_counter()
        with torch.no_grad():
            model.generate(ids, min_new_tokens=NEW_TOKENS, max_new_tokens=NEW_TOKENS, do_sample=False)
        _print("transformers", count, time.perf_counter() - started, time.process_time() - cpu, 0)


def _cpu_seconds(pids: set[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def _print(engine: str, count: int, wall: float, cpu: float, start: float) -> None:
    tokens = count * NEW_TOKENS
    print(f"{engine:<14}{count:>10}{tokens / wall:>10.1f}{tokens / max(cpu, 1e-9):>14.1f}{start:>9.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["transformers", "vllm", "sglang"])
