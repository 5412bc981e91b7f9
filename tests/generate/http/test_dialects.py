"""What each server is asked, and where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.generate.http.dialects import Engine, Manner, Question, dialect

ASKED = Question([{"role": "user", "content": "Grüße"}], [{"type": "function", "function": {"name": "f"}}], [5, 6])


def body(engine: Engine, api: Any = "chat", **manner: Any) -> dict[str, Any]:
    settled = Manner("m", 0.5, 0.9, **manner)
    return json.loads(dialect(engine, api).prepare("k", ASKED, settled, 100, 200).body)


@pytest.mark.parametrize(
    ("engine", "url", "root"),
    [
        ("sglang", "http://a:1", "http://a:1"),
        ("sglang", "http://a:1/v1/", "http://a:1"),
        ("vllm", "http://a:1", "http://a:1/v1"),
        ("openai", "http://a:1/base/v1/", "http://a:1/base/v1"),
        ("openrouter", "https://openrouter.ai", "https://openrouter.ai/api/v1"),
        ("openrouter", "https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        ("openrouter", "https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
    ],
)
def test_base_urls_may_be_given_with_or_without_the_version(engine: Engine, url: str, root: str) -> None:
    assert dialect(engine, "chat").root(url) == root


def test_sglang_is_sent_ids_and_asked_for_text_that_is_exactly_its_ids() -> None:
    asked = body("sglang", "completions", seed=3)
    assert asked["input_ids"] == [5, 6]
    sampling = asked["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["temperature"], sampling["top_p"]) == (100, 0.5, 0.9)
    assert (sampling["sampling_seed"], sampling["skip_special_tokens"], sampling["no_stop_trim"]) == (3, False, True)


def test_vllm_is_asked_for_ids_and_openai_servers_are_not() -> None:
    assert body("vllm")["return_token_ids"] is True
    assert body("vllm", "completions")["return_token_ids"] is True
    assert body("vllm", "completions")["prompt"] == [5, 6]
    assert "return_token_ids" not in body("openai")


def test_chats_carry_messages_tools_and_template_switches() -> None:
    asked = body("vllm", template_switches={"enable_thinking": False})
    assert asked["messages"] == ASKED.messages
    assert asked["tools"] == ASKED.tools
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs" not in body("openrouter", template_switches={"enable_thinking": False})


def test_streams_ask_for_usage_where_it_does_not_come_by_itself() -> None:
    assert body("vllm", stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body("openrouter", stream=True)
    assert body("sglang", stream=True)["stream"] is True
    assert body("sglang", stream=True)["sampling_params"]["stream_interval"] == 50
    assert "stream" not in body("sglang")


def test_further_fields_of_the_recipe_win() -> None:
    asked = body("openrouter", provider={"only": ["a"]}, extra_body={"top_k": 5, "temperature": 1})
    assert (asked["top_k"], asked["temperature"], asked["provider"]) == (5, 1, {"only": ["a"]})


def test_equal_questions_are_equal_bytes() -> None:
    requests = [dialect("vllm", "chat").prepare("k", ASKED, Manner("m", 0.5, 0.9), 100, 200) for _ in range(2)]
    assert requests[0].body == requests[1].body
    assert "Grüße".encode() in requests[0].body
