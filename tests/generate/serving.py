"""Runs of the served engines against the fake server, in this process or in a child that can be killed.

    python -m tests.generate.serving JSON

JSON holds the fields of `Run`; the child answers all of its prompts and writes the result into its store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from prefect.settings import PREFECT_RESULTS_LOCAL_STORAGE_PATH, temporary_settings

from schemas.generation import GenerationSpec
from tasks.artifacts.artifact import Rows, Shards
from tasks.artifacts.store import open_store
from tasks.artifacts.workspace import Workspace
from tasks.formats.codec import load_codec
from tasks.formats.registry import bind
from tasks.generate.piloted import make_forecast
from tasks.generate.serve.job import Job, Means, endpoints_of, job_of, look_around
from tasks.generate.served import answer_all, partitioned
from tasks.target.rendering import MarkerFinder, Renderer
from tasks.target.text import load_template
from tests.rows import prompt, prompts
from tests.servers.fake import FakeServer
from tests.servers.faults import Fault
from tests.servers.routes import MODEL
from tests.tokenizers import folder

ROOT = Path(__file__).parents[2]
END = 2  # of SmolLM2
CONTEXT = 4096
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # what the template says by itself
_WORDS = ("river", "clock", "garden", "winter", "engine", "letter", "market", "shadow", "ladder", "pepper", "window")

# of every class that any dialect has, but for those that are answers of a kind
CLASSES: dict[str, dict[str, Any]] = {
    "status 500": {"kind": "status", "options": {"status": 500}},
    "status 429": {"kind": "status", "options": {"status": 429, "retry_after": "0"}},
    "status 503": {"kind": "status", "options": {"status": 503}},
    "reset before": {"kind": "reset_before"},
    "reset amid": {"kind": "reset_middle"},
    "stall before": {"kind": "stall_before"},
    "stall amid": {"kind": "stall_middle"},
    "cut": {"kind": "cut"},
    "truncated": {"kind": "truncated_json"},
    "not JSON": {"kind": "not_json"},
    "error in body": {"kind": "error_in_body"},
    "no usage": {"kind": "no_usage"},
    "padded": {"kind": "padded"},
    "slow": {"kind": "slow"},
    "null choices": {"kind": "null_choices"},
    "parts": {"kind": "content_parts"},
}


def faults(share: float) -> list[Fault]:
    """Every class of fault, that many requests in all."""
    return [Fault(**one, probability=share / len(CLASSES)) for one in CLASSES.values()]


def vocabulary(path: Path, target: Path | None = None) -> Path:
    """SmolLM2's ids of words whose texts, one after the other, are read as these ids again.

    Prompts of chats are counted with the template and tokenizer of `target`, if it is given.
    """
    ids = [row for row in load_codec(folder("smollm2")).encode([f" {word}" for word in _WORDS]) if len(row) == 1]
    pieces = [[row[0], f" {word}"] for row, word in zip(ids, _WORDS, strict=True)]
    path.write_text(json.dumps({"pieces": pieces, "end": END, "close": 0, "target": target and str(target)}))
    return path


def means(template_sha256: str = "ab" * 32) -> Means:
    """SmolLM2's tokenizer and template."""
    place = folder("smollm2")
    codec = load_codec(place)
    renderer = Renderer(load_template(place), {}, codec, CONTEXT)
    return Means(renderer, bind("plain", codec, [END]), MarkerFinder(codec.markers), template_sha256, "")


@dataclass
class Run:
    """What a run is told."""

    url: str
    store: str
    engine: str = "openrouter"
    questions: int = 40
    talks: int = 0  # conversations of three turns
    twins: int = 0  # pairs of questions that the template makes the same
    serving: dict[str, Any] = field(default_factory=dict)
    concurrency: int = 32
    shard_prompts: int = 2000

    @cached_property
    def spec(self) -> GenerationSpec:
        """The recipe's section."""
        limits = {"concurrency": self.concurrency, "max_tokens": 64}
        endpoint = {"url": self.url} | self.serving.get("endpoint", {})
        model = {"model": MODEL} if self.engine == "openrouter" else {}
        serving = {
            "endpoints": [endpoint],
            "short": limits,
            "long": limits | {"max_tokens": 96},
            "backoff_seconds": 0.01,
            "longest_backoff_seconds": 0.1,
            "idle_seconds": 1,
            **model,
            **{name: value for name, value in self.serving.items() if name != "endpoint"},
        }
        fields = {"engine": self.engine, "serving": serving, "shard_prompts": self.shard_prompts}
        return GenerationSpec.model_validate(fields)

    def table(self) -> pa.Table:
        """The prompts: conversations in the order of their ids."""
        rows = [prompt(f"Question {number}?", dataset=("chat", "code")[number % 2]) for number in range(self.questions)]
        for number in range(self.talks):
            first = prompt(f"Talk {number}", dataset="talks")
            second = prompt("More?", parent=first, dataset="talks")
            rows += [first, second, prompt("And then?", parent=second, dataset="talks")]
        for number in range(self.twins):
            said = {"role": "system", "content": _SYSTEM}
            rows += [prompt(f"Twin {number}", dataset="chat"), prompt(said, f"Twin {number}", dataset="chat")]
        return prompts(*sorted(rows, key=lambda row: (row["root_id"], row["turn"], row["prompt_id"])))

    def job(self) -> Job:
        """The job, once the server has told of itself."""
        endpoints = endpoints_of(self.engine, self.spec.serving)
        survey = asyncio.run(look_around(self.engine, endpoints, self.spec.serving))
        return job_of(self.spec, endpoints, survey, means(), 7)

    def answer(self) -> Shards:
        """Answer everything and write it."""
        partitions = {"chat": "short", "code": "short", "talks": "long"}
        with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: Path(self.store) / "results"}):
            open_store()
            parts = partitioned(self.table(), partitions, self.spec.serving)
            space = Workspace("generate_served/one.parquet")
            return answer_all(self.job(), parts, Path(self.store), "test", space, self.spec)

    def forecast(self, pilot_prompts: int) -> Rows:
        """Ask a pilot and foretell the rest."""
        partitions = {"chat": "short", "code": "short", "talks": "long"}
        with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: Path(self.store) / "results"}):
            open_store()
            parts = partitioned(self.table(), partitions, self.spec.serving)
            space = Workspace(f"forecast_served/{uuid.uuid4().hex}.parquet")
            return make_forecast(self.job(), parts, Path(self.store), "test", space, self.spec, pilot_prompts)

    def read(self, result: Shards, part: str) -> list[dict[str, Any]]:
        """The rows of a part."""
        with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: Path(self.store) / "results"}):
            return [row for table in result.tables(part) for row in table.to_pylist()]

    def command(self) -> list[str]:
        """What runs this in a child."""
        return [sys.executable, "-m", "tests.generate.serving", json.dumps(asdict(self))]


def url_of(server: FakeServer, engine: str) -> str:
    """Where an engine's dialect is spoken."""
    return server.openrouter if engine == "openrouter" else server.url


def main(arguments: Sequence[str]) -> None:
    """Be the child."""
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    run = Run(**json.loads(arguments[0]))
    Path(run.store, "done.json").write_text(run.answer().model_dump_json())


if __name__ == "__main__":
    main(sys.argv[1:])
