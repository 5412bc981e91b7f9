"""Conversations with tools, turn by turn on the target's own answers, for every family: each prompt to the last id.

The server knows only the prompts that agents.py makes by another way, and answers any other with what no target says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.generation import GenerationSpec
from schemas.sections import ReconstructionSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.generate.engine import Answer
from tasks.generate.serve.job import endpoints_of, job_of, look_around
from tasks.generate.served import answer_all, partitioned
from tasks.generate.turns import Turns
from tasks.reconstruct.assemble import judge
from tasks.reconstruct.row import Means as JudgingMeans
from tasks.target.text import render_text
from tests.generate.agents import AGENTS, Agent, scripts
from tests.generate.serving import url_of
from tests.rows import prompts
from tests.servers.fake import FakeServer, fake_server

FAMILIES = list(AGENTS)
# families whose JSON a chat server parses and writes anew, with other spaces than were sampled
REWRITTEN = {"kimi-k2.5", "qwen3"}


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    known = tmp_path_factory.mktemp("scripts") / "scripts.json"
    found = [script for name in FAMILIES for chat in (True, False) for script in scripts(name, chat)]
    known.write_text(json.dumps({"scripts": found}))
    with fake_server(vocabulary=known) as server:
        yield server


def turns_of(name: str, chat: bool = False) -> Turns:
    agent = AGENTS[name]
    means = agent.means(name)
    renderer = means.renderer
    table = prompts(*agent.rows)
    own = type(renderer)(renderer.template, renderer.switches, renderer.codec, renderer.context, chat)
    return Turns(table, own, means.token_format, 64, means.markers)


def asked(turns: Turns, agent: Agent, level: int) -> list[int]:
    (found,) = turns.ready(level)
    assert found.prompt_id == agent.rows[level]["prompt_id"]
    return list(found.ids)


def settle(turns: Turns, agent: Agent, level: int) -> None:
    ids, prompt_id = agent.answer_ids(level), agent.rows[level]["prompt_id"]
    turns.settle([Answer(prompt_id, ids, "", "stop", 64, 1, len(ids))])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_prompt_is_what_another_renderer_makes_of_the_sampled_answers(name: str) -> None:
    agent, turns = AGENTS[name], turns_of(name)
    for level in range(3):
        assert asked(turns, agent, level) == agent.prompt_ids(level, chat=False)
        settle(turns, agent, level)
    assert not turns.quarantine
    assert not turns.rewritten


@pytest.mark.parametrize("name", FAMILIES)
def test_the_history_says_what_was_sampled(name: str) -> None:
    assert AGENTS[name].written in AGENTS[name].text(2, chat=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_chat_server_writes_otherwise_is_counted(name: str) -> None:
    agent, turns = AGENTS[name], turns_of(name, chat=True)
    for level in range(3):
        assert asked(turns, agent, level) == agent.prompt_ids(level, chat=True)
        settle(turns, agent, level)
    assert turns.rewritten == ([agent.rows[1]["prompt_id"]] if name in REWRITTEN else [])


def answered(server: FakeServer, store: Path, name: str, engine: str) -> tuple[Shards, list[dict[str, Any]]]:
    """Has a server answer one family's conversation; the result, and its answers in order."""
    agent = AGENTS[name]
    limits = {"concurrency": 4, "max_tokens": 256}
    serving = {"endpoints": [{"url": url_of(server, engine)}], "short": limits, "long": limits}
    spec = GenerationSpec.model_validate({"engine": engine, "serving": serving})
    endpoints = endpoints_of(engine, spec.serving)
    survey = asyncio.run(look_around(engine, endpoints, spec.serving))
    job = job_of(spec, endpoints, survey, agent.means(name), 0)
    parts = partitioned(prompts(*agent.rows), {}, spec.serving)
    result = answer_all(job, parts, store, f"{name}-{engine}", Workspace(f"generate_served/{name}{engine}"), spec)
    rows = {row["prompt_id"]: row for table in result.tables("answers") for row in table.to_pylist()}
    return result, [rows[row["prompt_id"]] for row in agent.rows if row["prompt_id"] in rows]


@pytest.mark.parametrize("engine", ["sglang", "vllm", "openai"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_over_http_gives_exact_sequences(
    name: str, engine: str, server: FakeServer, store: Path
) -> None:
    agent, chat = AGENTS[name], engine != "sglang"
    result, rows = answered(server, store, name, engine)
    assert result.facts["quarantined"] == {}
    assert [json.loads(row["request"])["messages"] for row in rows] == [agent.messages(turn) for turn in range(3)]
    assert result.facts.get("rewritten_calls", 0) == (chat and name in REWRITTEN)

    means = agent.means(name)
    template = means.renderer.template

    def render(request: str) -> list[int]:
        sent = json.loads(request)
        messages, tools = sent["messages"], sent.get("tools")
        text = render_text(template.text, messages, tools, agent.switches, template.tokens, chat=True)
        return means.codec.encode_prompt([text])[0]

    judging = JudgingMeans(means.token_format, means.codec, ReconstructionSpec(), render)
    judged = judge(result.table("answers"), judging, {})
    assert [row.fault for row in judged] == [None] * 3
    for turn, row in enumerate(judged):
        assert row.prompt is not None
        assert row.prompt.tolist() == agent.prompt_ids(turn, chat)
        assert row.completion is not None
        assert row.completion.tolist() == agent.answer_ids(turn)
