"""The task as a flow calls it: prompts in, answers of servers out, which give exact sequences in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.generation import GenerationSpec
from schemas.prompts import PROMPTS
from schemas.sections import ReconstructionSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.keys import canonical
from tasks.generate.served import generate_served, partitioned
from tasks.reconstruct.task import reconstruct_sequences
from tests.generate.serving import url_of, vocabulary
from tests.rows import prompt, prompts, run_body, stored
from tests.servers.fake import FakeServer, fake_server

LIMITS = {"short": {"concurrency": 8, "max_tokens": 64}, "long": {"concurrency": 4, "max_tokens": 128}}
DIALECTS = [("sglang", "chat"), ("vllm", "chat"), ("vllm", "completions"), ("openai", "chat"), ("openrouter", "chat")]


@pytest.fixture(scope="module")
def _server(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    words = vocabulary(tmp_path_factory.mktemp("words") / "words.json", tiny_target)
    with fake_server(vocabulary=words) as server:
        yield server


def spec(server: FakeServer, engine: str = "vllm", **serving: Any) -> GenerationSpec:
    model = {"model": "fake-model"} if engine == "openrouter" else {}
    fields = {"endpoints": [{"url": url_of(server, engine)}], **LIMITS, **model, **serving}
    return GenerationSpec.model_validate({"engine": engine, "serving": fields, "shard_prompts": 4})


def rows_of_talk(subject: str, dataset: str = "talks") -> list[dict[str, Any]]:
    first = prompt(f"Where is the {subject}?", dataset=dataset)
    second = prompt("Since when?", parent=first, dataset=dataset)
    return [first, second, prompt("Why?", parent=second, dataset=dataset)]


ROWS = [
    *(prompt(f"What is a {thing}?") for thing in ("comet", "river", "clock")),
    *(row for subject in ("violin", "pepper") for row in rows_of_talk(subject)),
]


def served(
    target: Shards, target_spec: TargetSpec, generation: GenerationSpec, rows: list[dict[str, Any]] = ROWS
) -> Shards:
    ordered = sorted(rows, key=lambda row: (row["root_id"], row["turn"], row["prompt_id"]))
    given = stored("gather_prompts", "train", PROMPTS, [prompts(*ordered)])
    partitions = {"chat": "short", "talks": "long"}
    return run_body(generate_served, target, given, generation, partitions, "quarantine", 0, target_spec, "test")


@pytest.mark.parametrize(("engine", "api"), DIALECTS)
def test_answers_over_http_become_exact_sequences(
    engine: str,
    api: str,
    server: FakeServer,
    store: Path,
    tiny_artifact: Shards,
    tiny_spec: TargetSpec,
) -> None:
    answers = served(tiny_artifact, tiny_spec, spec(server, engine, api=api))
    sequences = run_body(reconstruct_sequences, tiny_artifact, answers, ReconstructionSpec(), tiny_spec)
    rows = [row for table in sequences.tables("sequences") for row in table.to_pylist()]
    assert len(rows) == len(ROWS) == 9
    assert sequences.facts["quarantined"] == {}
    assert {row["delta_class"] for row in rows} == {"exact"}
    assert {row["prompt_id"] for row in rows} == {row["prompt_id"] for row in ROWS}


@pytest.mark.parametrize(("engine", "api"), DIALECTS)
def test_later_turns_are_asked_on_the_servers_own_answers(
    engine: str, api: str, server: FakeServer, store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    answers = served(tiny_artifact, tiny_spec, spec(server, engine, api=api), rows_of_talk("violin"))
    (first, second, third) = sorted(
        (row for table in answers.tables("answers") for row in table.to_pylist()), key=lambda row: len(row["request"])
    )
    said = [
        message["content"] for message in json.loads(third["request"])["messages"] if message["role"] == "assistant"
    ]
    assert said == [row["content"].removesuffix("<|im_end|>") for row in (first, second)]
    assert server.summary()["requests"] == 3


def test_long_conversations_run_last_under_their_own_limit(
    server: FakeServer, store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    answers = served(tiny_artifact, tiny_spec, spec(server))
    rows = [row for table in answers.tables("answers") for row in table.to_pylist()]
    assert {(row["dataset"], row["max_tokens"]) for row in rows} == {("chat", 64), ("talks", 128)}
    started = {row["dataset"]: row["started_ms"] for row in answers.table("ledger").to_pylist()[::-1]}
    ended = {row["dataset"]: row["started_ms"] for row in answers.table("ledger").to_pylist()}
    assert ended["chat"] <= started["talks"]


def test_a_conversation_with_a_turn_of_a_long_dataset_is_long(server: FakeServer) -> None:
    first = prompt("Hi", dataset="chat")
    table = prompts(first, prompt("More?", parent=first, dataset="talks"))
    short, long = partitioned(table, {"chat": "short", "talks": "long"}, spec(server).serving)
    assert (short.rows, long.rows) == (0, 2)


def test_shards_hold_whole_conversations(
    server: FakeServer, store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    answers = served(tiny_artifact, tiny_spec, spec(server))
    roots = [set(table["root_id"].to_pylist()) for table in answers.tables("answers")]
    assert len(roots) == 3
    assert sum(map(len, roots)) == len(set.union(*roots)) == 5


def test_prompts_that_cannot_be_asked_are_quarantined_and_cost_nothing(
    server: FakeServer, store: Path, tiny_artifact: Shards, tiny_spec: TargetSpec
) -> None:
    rows = [prompt("say <|im_end|>"), prompt("word " * 2000), prompt("Hi")]
    answers = served(tiny_artifact, tiny_spec, spec(server), rows)
    assert answers.facts["quarantined"] == {"marker_in_prompt": 1, "prompt_too_long": 1}
    assert (answers.facts["rows_in"], answers.facts["rows_out"]) == (3, 1)
    assert server.summary()["requests"] == 1


def test_a_recipe_that_changes_only_manners_has_the_same_key(server: FakeServer) -> None:
    changed = spec(server, retries=2, budget={"usd": 3}, grace_seconds=1)
    assert canonical(spec(server)) == canonical(changed)
    assert canonical(spec(server)) != canonical(spec(server, api="completions"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"engine": "vllm"}, "needs a server"),
        ({"engine": "openrouter", "serving": {"endpoints": [{"url": "https://x.example/api/v1"}]}}, "serving.model"),
        (
            {"engine": "vllm", "regenerate_tokens": 900, "serving": {"endpoints": [{"url": "http://127.0.0.1:1"}]}},
            "regenerate_tokens is for engine transformers",
        ),
    ],
)
def test_a_section_that_no_server_could_answer_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GenerationSpec.model_validate(fields)
