"""The fake server itself: quick, sure of what it says, and with an account that adds up."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any

import pytest

from tests.servers.account import Price
from tests.servers.answers import Vocabulary, answer_to, key_of
from tests.servers.fake import FakeServer, fake_server
from tests.servers.faults import Fault, Faults

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}


def post(server: FakeServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}{path}", json.dumps(body).encode(), timeout=60) as response:
        return json.load(response)


def get(server: FakeServer, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=60) as response:
        return json.load(response)


def test_an_answer_depends_on_the_prompt_alone() -> None:
    asked = [CHAT, CHAT | {"temperature": 1.0, "max_tokens": 65}]
    first, second = (answer_to(body, Vocabulary()) for body in asked)
    assert first == second
    assert key_of(asked[0]) == key_of(asked[1]) != key_of(CHAT | {"messages": []})


def test_prices_are_exact() -> None:
    assert Price("0.00000055", "0.00000219").micros(1_000_000, 1_000_000) == 2_740_000
    assert Price("0.0000001", "0").micros(1, 0) == 1


def test_chance_gives_the_same_faults_whatever_the_order() -> None:
    def drawn(keys: list[str]) -> dict[str, str | None]:
        faults = Faults([Fault("cut", probability=0.3), Fault("status", probability=0.3)], seed=4)
        return {key: fault.kind if (fault := faults.draw(key, "/", 0)) else None for key in keys}

    keys = [str(number) for number in range(1000)]
    assert drawn(keys) == drawn(keys[::-1])
    kinds = list(drawn(keys).values())
    assert all(230 < kinds.count(kind) < 370 for kind in ("cut", "status"))


def test_the_account_tells_each_generation_and_their_sum() -> None:
    with fake_server() as server:
        bodies = [post(server, "/api/v1/chat/completions", CHAT | {"max_tokens": 20 + n}) for n in range(5)]
        told = [get(server, f"/api/v1/generation?id={body['id']}")["data"]["total_cost"] for body in bodies]
        assert told == [body["usage"]["cost"] for body in bodies]
        assert get(server, "/api/v1/key")["data"]["usage"] == pytest.approx(sum(told))
        assert server.summary()["billed_micros"] == sum(round(cost * 1_000_000) for cost in told)


def test_each_dialect_has_its_pages() -> None:
    with fake_server() as server:
        assert get(server, "/ready") == {}
        assert get(server, "/model_info")["is_generation"]
        assert get(server, "/server_info")["version"]
        assert get(server, "/v1/models")["data"][0]["id"] == "fake-model"
        assert get(server, "/api/v1/models")["data"][0]["pricing"]["completion"] == "0.00000219"
        assert get(server, "/api/v1/models/fake/model/endpoints")["data"]["endpoints"][0]["quantization"] == "fp8"


@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
def test_chats_give_ids_as_each_server_does(flavour: str) -> None:
    with fake_server(flavour=flavour) as server:
        body = post(server, "/v1/chat/completions", CHAT | {"return_token_ids": True, "return_prompt_token_ids": True})
        choice = body["choices"][0]
        ids = choice["token_ids"] if flavour == "vllm" else choice["response_token_ids"]
        prompt = body["prompt_token_ids"] if flavour == "vllm" else choice["prompt_token_ids"]
        assert (ids, prompt) == (answer_to(CHAT, Vocabulary()).ids, answer_to(CHAT, Vocabulary()).prompt_ids)


def test_a_vocabulary_of_ones_own_makes_text_of_known_ids(tmp_path: Any) -> None:
    file = tmp_path / "vocabulary.json"
    pieces = [[number, f" p{number}"] for number in range(50, 60)]
    file.write_text(json.dumps({"pieces": pieces, "end": 99, "close": 98}))
    with fake_server(vocabulary=file, reasoning=True) as server:
        choice = post(server, "/v1/chat/completions", CHAT | {"return_token_ids": True})["choices"][0]
    texts = dict(pieces)
    said = "".join(texts.get(number, "|") for number in choice["token_ids"])
    assert said == f"{choice['message']['reasoning']}|{choice['message']['content']}|"


def test_the_server_ends_with_its_parent() -> None:
    with fake_server() as server:
        process = server.process
    assert process.wait(10) == 0
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", server.port), timeout=5):
        pass
