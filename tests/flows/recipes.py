"""A small recipe on the tiny target, for the tests of the command and its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

TRAIN = [f"Tell me about a {thing}." for thing in ("river", "clock", "garden", "winter", "engine", "letter")]
BENCHMARK = [f"What is the use of a {thing}?" for thing in ("market", "shadow")]


def write_recipe(folder: Path, target: Path, **changes: Any) -> Path:
    """A recipe file with 6 training and 2 benchmark prompts; `changes` replace or add top-level fields."""
    for name, texts in (("train", TRAIN), ("bench", BENCHMARK)):
        rows = [{"id": str(n), "messages": [{"role": "user", "content": text}]} for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields: dict[str, Any] = {
        "name": "tiny",
        "target": {"model": str(target)},
        "datasets": [
            {"name": "words", "source": str(folder / "train.jsonl")},
            {"name": "uses", "source": str(folder / "bench.jsonl"), "split": "benchmark"},
        ],
        "generation": {"max_tokens": 12},
        "corpus": {"heldout": 2, "max_length": 256},
        "vocabulary": {"size": 512},
        "benchmark": {"max_tokens": 8, "chain": 2},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields | changes))
    return path
