"""A tiny recipe that takes seconds, a Prefect server of the tests' own, and a store in which the recipe ran.

Some of its prompts are conversations of several turns, so that its target must end its answers now and then.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from transformers import LlamaForCausalLM

from tasks.formats.codec import load_codec
from tests.e2e.runs import Runs, Server

END = 2
CONSTANT, END_WEIGHT = 20.0, 4.3  # at the recipe's temperature, about one token in six

WORDS = [
    "river",
    "clock",
    "garden",
    "winter",
    "engine",
    "letter",
    "market",
    "shadow",
    "violin",
    "harbour",
    "ladder",
    "pepper",
]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Prefect server on a free port, with its own database."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    environment = os.environ | {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    environment.pop("PREFECT_API_URL", None)
    with open(home / "server.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start"], env=environment, stdout=log, stderr=log
        )
    try:
        _wait_healthy(api, process, home / "server.log")
        yield Server(api, home)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_healthy(api: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{api}/health", timeout=2).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            time.sleep(0.3)
    raise RuntimeError(f"the Prefect server did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def ending_target(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_target` with a place in its state that is the same everywhere, and a head that reads it: an answer ends at
    every sixth token or so, and has no control id and no half of a character."""
    folder = tmp_path_factory.mktemp("ending-target")
    shutil.copytree(tiny_target, folder, dirs_exist_ok=True)
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    codec = load_codec(folder)
    texts = codec.decode([[number] for number in range(codec.vocab_size)])
    unsaid = [number for number, text in enumerate(texts) if "\ufffd" in text or number in codec.special_ids]
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = CONSTANT
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        model.lm_head.weight[:, 0] = 0
        model.lm_head.weight[unsaid, 0] = -10
        model.lm_head.weight[END] = 0
        model.lm_head.weight[END, 0] = END_WEIGHT
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_recipe(ending_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole recipe on a tiny random target, which runs in seconds; its answers are cut, made again, or end."""
    folder = tmp_path_factory.mktemp("recipe")
    _write_prompts(
        folder / "train.jsonl", [f"Tell me about a {a} and a {b}." for a in WORDS for b in WORDS[:2] if a != b]
    )
    _write_talks(folder / "talks.jsonl", WORDS[:8])
    _write_prompts(folder / "bench.jsonl", [f"What is the use of a {a}?" for a in WORDS[:4]])
    recipe = {
        "name": "tiny",
        "seed": 3,
        "target": {"model": str(ending_target)},
        "datasets": [
            {"name": "words", "source": str(folder / "train.jsonl")},
            {"name": "talks", "source": str(folder / "talks.jsonl")},
            {"name": "uses", "source": str(folder / "bench.jsonl"), "split": "benchmark"},
        ],
        "generation": {"max_tokens": 8, "regenerate_tokens": 12, "batch_size": 4, "shard_prompts": 8},
        "audit": {"max_quarantined_share": 1.0},
        "corpus": {"heldout": 3, "max_length": 256, "shard_sequences": 8},
        "vocabulary": {"size": 512},
        "training": {"ttt_steps": 2, "epochs": 3, "learning_rate": 1e-3, "checkpoint_every": 4, "evaluate_every": 10},
        "benchmark": {"max_tokens": 8, "chain": 2, "batch_size": 2, "shard_prompts": 2, "bootstrap": 100},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def _write_prompts(path: Path, texts: list[str]) -> None:
    rows = [{"id": str(i), "messages": [{"role": "user", "content": text}]} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_talks(path: Path, subjects: list[str]) -> None:
    """Conversations of three turns, whose recorded answers are not kept."""
    rows = []
    for number, subject in enumerate(subjects):
        messages = [{"role": "system", "content": f"You own a {subject}."}]
        for question in (f"Where is your {subject}?", "Since when?", f"May I see the {subject}?"):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "It is not recorded."}]
        rows.append({"id": str(number), "messages": messages})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def finished_store(tiny_recipe: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the tiny recipe ran undisturbed; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("finished")
    with Runs(folder / "store", server, folder / "log") as runs:
        assert runs.run(tiny_recipe) == 0, runs.said()
    return folder / "store"
