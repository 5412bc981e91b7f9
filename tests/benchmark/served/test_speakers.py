"""What comes back over HTTP is what the loop behind the server decoded and counted, in every dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from schemas.benchmarking import SpeculationSpec
from schemas.errors import EngineError
from tasks.benchmark.drafters import PlainDrafter
from tasks.benchmark.served.client import Client
from tasks.benchmark.served.conversations import Conversations
from tasks.benchmark.served.dialects import dialect_of
from tasks.benchmark.served.identity import require_tokenizer
from tasks.benchmark.served.loop import LoopSpeaker, chains_of
from tasks.benchmark.served.passes import Run, Setting, run_pass
from tasks.benchmark.served.speakers import ServerSpeaker
from tasks.formats.registry import bind
from tasks.target.model import Target
from tasks.target.rendering import Renderer
from tests.benchmark.served.small import CHAIN, Foresight, prompt_table
from tests.benchmark.served.speaking import Behaviour, SpeakingServer, speaking

ENGINES = ("vllm", "sglang", "llamacpp")
SPECULATION = SpeculationSpec(steps=CHAIN)
TOKENS = 10


@pytest.fixture
def conversations(renderer: Renderer, tiny_loaded: Target) -> Callable[[], Conversations]:
    facts = tiny_loaded.facts
    token_format = bind(facts["token_format"], renderer.codec, facts["eos_ids"])
    return lambda: Conversations(prompt_table(later=2), renderer, token_format, TOKENS + CHAIN + 1)


Connect = Callable[..., tuple[Client, Behaviour]]


@pytest.fixture
def connect(tiny_loaded: Target, renderer: Renderer) -> Iterator[Connect]:
    """Starts a server, and gives a client of it."""
    with ExitStack() as stack:

        def start(engine: str, codec: Any = None, **changes: Any) -> tuple[Client, Behaviour]:
            behaviour = Behaviour(engine, **changes)
            server = SpeakingServer(
                tiny_loaded, lambda: Foresight(tiny_loaded), CHAIN, codec or renderer.codec, behaviour
            )
            client = Client(stack.enter_context(speaking(server)), dialect_of(engine), "target", 30, 8)
            stack.callback(client.close)
            return client, behaviour

        yield start


def rows_of(run: Run, setting: Setting, speaker: Any, conversations: Conversations, folder: Path) -> tuple[Any, Any]:
    answers, passes, lost = run_pass(run, setting, speaker, conversations, TOKENS, folder, lambda n: None)
    assert not lost
    return answers.to_pylist(), passes.to_pylist()[0]


COUNTED = ("output_ids", "prompt_ids", "verify_steps", "drafted", "accepted", "accepted_by_position", "finish_reason")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_gives_the_answers_and_counts_of_the_loop_behind_it(
    engine: Any, connect: Connect, conversations: Any, tiny_loaded: Target, tmp_path: Path
) -> None:
    own = LoopSpeaker(
        chains_of(tiny_loaded, lambda: Foresight(tiny_loaded), "trained"), CHAIN, tiny_loaded.facts["eos_ids"], 0
    )
    run = Run(engine="transformers", drafter="ngram", speculation=SPECULATION)
    wanted, total = rows_of(run, Setting(0.0, 1), own, conversations(), tmp_path / "own")
    assert total["accepted"] > 0
    assert total["counted_by"] == "loop"
    client, _ = connect(engine)
    run = Run(engine=engine, drafter="ngram", speculation=SPECULATION)
    found, passed = rows_of(run, Setting(0.0, 1), ServerSpeaker(client, CHAIN), conversations(), tmp_path / "server")
    assert [{name: row[name] for name in COUNTED} for row in found] == [
        {name: row[name] for name in COUNTED} for row in wanted
    ]
    assert [row["turn"] for row in found] == [0, 0, 0, 0, 0, 1, 1]
    for name in ("verify_steps", "drafted", "accepted", "accepted_by_position", "tokens", "answers"):
        assert passed[name] == total[name]
    assert passed["counted_by"] == ("counters" if engine == "llamacpp" else "response")
    assert all(0 < row["first_seconds"] <= row["seconds"] for row in found)


def test_a_server_that_counts_only_for_all_gives_counts_of_the_pass(
    connect: Connect, conversations: Any, tmp_path: Path
) -> None:
    client, behaviour = connect("vllm", counts_in_response=False)
    run = Run(engine="vllm", drafter="ngram", speculation=SPECULATION)
    rows, passed = rows_of(run, Setting(0.0, 4), ServerSpeaker(client, CHAIN), conversations(), tmp_path)
    assert {row["verify_steps"] for row in rows} == {None}
    assert passed["counted_by"] == "counters"
    assert passed["verify_steps"] == behaviour.metrics["drafts"]
    assert passed["accepted"] == behaviour.metrics["accepted_tokens"]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_counters_that_others_move_are_refused(
    concurrency: int, connect: Connect, conversations: Any, tmp_path: Path
) -> None:
    client, _ = connect("vllm", counts_in_response=False, foreign_tokens=5)
    run = Run(engine="vllm", drafter="ngram", speculation=SPECULATION)
    with pytest.raises(EngineError, match="somebody else uses the server"):
        rows_of(run, Setting(0.0, concurrency), ServerSpeaker(client, CHAIN), conversations(), tmp_path)


def test_a_server_that_breaks_off_keeps_what_it_had_answered(
    connect: Connect, conversations: Any, tmp_path: Path
) -> None:
    client, behaviour = connect("sglang", dies_after=3)
    run = Run(engine="sglang", drafter="ngram", speculation=SPECULATION)
    with pytest.raises(EngineError, match="broke off after"):
        rows_of(run, Setting(0.0, 1), ServerSpeaker(client, CHAIN), conversations(), tmp_path)
    behaviour.dies_after = -1
    behaviour.answers = 0
    rows, passed = rows_of(run, Setting(0.0, 1), ServerSpeaker(client, CHAIN), conversations(), tmp_path)
    assert behaviour.answers == 7 - 3, "three answers were kept"
    assert passed["answers"] == len(rows) == 7
    assert passed["verify_steps"] == sum(row["verify_steps"] for row in rows)


def test_a_server_that_is_not_there_is_named() -> None:
    client = Client("http://127.0.0.1:9", dialect_of("vllm"), "target", 5, 1)
    with pytest.raises(EngineError, match=r"vllm server at http://127.0.0.1:9 does not answer"):
        client.ask((1, 2), 0.0, 4, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_tokenizer_is_another_model(engine: str, connect: Connect, renderer: Renderer) -> None:
    require_tokenizer(connect(engine)[0], renderer.codec)

    class Other:
        def encode(self, texts: list[str]) -> list[list[int]]:
            return [[id_ + (place == 3) for place, id_ in enumerate(row)] for row in renderer.codec.encode(texts)]

    with pytest.raises(EngineError, match=r"at id 3 .* a different model"):
        require_tokenizer(connect(engine, codec=Other())[0], renderer.codec)


def test_a_server_without_a_draft_is_no_server_with_one(
    tiny_loaded: Target, renderer: Renderer, conversations: Any, tmp_path: Path
) -> None:
    behaviour = Behaviour("vllm", counts_in_response=False)
    server = SpeakingServer(tiny_loaded, PlainDrafter, 0, renderer.codec, behaviour)
    with speaking(server) as url:
        client = Client(url, dialect_of("vllm"), "target", 30, 1)
        run = Run(engine="vllm", drafter="draft", speculation=SPECULATION)
        with pytest.raises(EngineError, match="drafted nothing"):
            rows_of(run, Setting(0.0, 4), ServerSpeaker(client, CHAIN), conversations(), tmp_path)
        client.close()
