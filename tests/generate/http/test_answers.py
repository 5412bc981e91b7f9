"""Answers of every dialect, whole and streamed, arrive as the server made them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tasks.generate.http.client import Client
from tests.generate.http.asking import DIALECTS, ask, endpoint, expected, prepare, spec
from tests.servers.account import MICROS
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault

ALL = pytest.mark.parametrize("name", DIALECTS)


@ALL
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_each_prompt_is_answered_once_with_its_own_answer(server: FakeServer, name: str, stream: bool) -> None:
    requests = [prepare(DIALECTS[name], number, stream) for number in range(20)]
    told = ask(server, DIALECTS[name], requests)
    for request, result in zip(requests, told.results, strict=True):
        document = json.loads(result.body)  # type: ignore[union-attr]
        said = json.dumps(document, ensure_ascii=False)
        assert document == result.document  # type: ignore[union-attr]
        assert json.dumps(expected(request).text, ensure_ascii=False) in said
        assert (str(expected(request).ids) in said) == (name not in ("openai", "openrouter"))
    assert told.outcomes == ["answered"] * 20
    keys = server.summary()["keys"]
    assert {key: (tally["requests"], tally["answered"]) for key, tally in keys.items()} == {
        request.key: (1, 1) for request in requests
    }


@ALL
@pytest.mark.parametrize("reasoning", ["reasoning", "reasoning_content", "reasoning_details", "all"])
def test_a_streamed_body_equals_the_one_that_is_not_streamed(server: FakeServer, name: str, reasoning: str) -> None:
    server.script(Fault("reasoning_field", probability=1, options={"name": reasoning}))
    whole = ask(server, DIALECTS[name], [prepare(DIALECTS[name])]).answer.document
    server.reset()  # so that the generation gets the same id
    streamed = ask(server, DIALECTS[name], [prepare(DIALECTS[name], stream=True)]).answer.document
    assert streamed == whole


def test_an_answer_cut_at_the_limit_says_so(server: FakeServer) -> None:
    request = prepare(DIALECTS["sglang"], max_tokens=5)
    document = ask(server, DIALECTS["sglang"], [request]).answer.document
    assert document["output_ids"] == expected(request).ids
    assert document["meta_info"]["finish_reason"] == {"type": "length", "length": 5}


def test_costs_add_up_to_what_the_account_says(server: FakeServer) -> None:
    requests = [prepare(DIALECTS["openrouter"], number, stream=number % 2 == 0) for number in range(30)]
    told = ask(server, DIALECTS["openrouter"], requests)
    costs = [attempt.facts.cost_usd for attempt in told.attempts]
    assert all(cost is not None for cost in costs)
    assert sum(round((cost or 0) * MICROS) for cost in costs) == server.summary()["billed_micros"] > 0
    assert {attempt.facts.provider for attempt in told.attempts} == {"ProviderA"}


def test_an_endpoint_tells_of_models_keys_and_generations(server: FakeServer) -> None:
    where = endpoint(server, DIALECTS["openrouter"])

    async def look() -> tuple[str, float, float]:
        async with Client([where], spec()) as client:
            result = await client.ask(prepare(DIALECTS["openrouter"]))
            models = await client.get(where.name, "/models")
            key = await client.get(where.name, "/key")
            generation = await client.get(where.name, f"/generation?id={result.facts.generation_id}")  # type: ignore[union-attr]
            return models["data"][0]["pricing"]["prompt"], key["data"]["usage"], generation["data"]["total_cost"]

    price, usage, cost = asyncio.run(look())
    assert price == "0.00000055"
    assert usage == cost > 0


def test_work_is_shared_by_weight(server: FakeServer) -> None:
    speaks = DIALECTS["sglang"]
    with fake_server() as other:

        async def run() -> None:
            where = [endpoint(server, speaks, weight=3.0), endpoint(other, speaks)]
            async with Client(where, spec(concurrency=8)) as client:
                await asyncio.gather(*[client.ask(prepare(speaks, number)) for number in range(200)])

        asyncio.run(run())
        shares = server.summary()["answered"], other.summary()["answered"]
        assert sum(shares) == 200
        assert shares[0] > shares[1] > 0
        assert server.summary()["most_in_flight"] <= 6
        assert other.summary()["most_in_flight"] <= 2


def test_an_unreachable_endpoint_leaves_its_work_to_the_others(server: FakeServer) -> None:
    speaks = DIALECTS["sglang"]
    with fake_server() as gone:
        where = [endpoint(gone, speaks), endpoint(server, speaks)]
        gone.kill()
    requests = [prepare(speaks, number) for number in range(40)]

    async def run() -> list[object]:
        async with Client(where, spec()) as client:
            return await asyncio.gather(*[client.ask(request) for request in requests])

    results = asyncio.run(run())
    assert [getattr(result, "endpoint", result) for result in results] == [where[1].name] * 40
