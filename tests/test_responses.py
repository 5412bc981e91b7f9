"""A raw response body becomes the answer that is in it, or a fault that says why there is none."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.answers import ANSWERS
from tasks.formats.format import Fault
from tasks.responses import Asked, Response, answer_row, read_response, read_responses


def body(message: dict[str, Any] | None = None, choice: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A whole answer as a chat API sends it."""
    said = {"role": "assistant", "reasoning": "Two plus two is four.", "content": "The answer is 4."}
    return {
        "id": "gen-x",
        "model": "moonshotai/kimi-k2.5",
        "provider": "ProviderA",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": said if message is None else message, **(choice or {})}
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 14, "total_tokens": 26},
        **changes,
    }


def read(raw: Any) -> Response:
    found = read_response(raw)
    assert isinstance(found, Response), found
    return found


def fault(raw: Any) -> str:
    found = read_response(raw)
    assert isinstance(found, Fault), found
    assert found.detail
    return found.reason


def test_a_chat_answer_is_taken_as_it_stands():
    assert asdict(read(body())) == {
        "prompt_ids": None,
        "output_ids": None,
        "reasoning": "Two plus two is four.",
        "content": "The answer is 4.",
        "tool_calls": None,
        "finish_reason": "stop",
        "prompt_tokens": 12,
        "completion_tokens": 14,
        "reasoning_tokens": None,
        "provider": "ProviderA",
        "model": "moonshotai/kimi-k2.5",
        "quantization": None,
        "response_id": "gen-x",
    }


def test_ids_of_an_openai_endpoint_are_taken():
    found = read(body(choice={"token_ids": [5, 6, 163586]}, prompt_token_ids=[1, 2]))
    assert (found.prompt_ids, found.output_ids) == ([1, 2], [5, 6, 163586])


def test_ids_of_sglangs_chat_are_taken():
    found = read(body(choice={"response_token_ids": [5, 6, 163586], "prompt_token_ids": [1, 2]}))
    assert (found.prompt_ids, found.output_ids) == ([1, 2], [5, 6, 163586])


def test_prompt_ids_may_stand_in_the_choice():
    assert read(body(choice={"prompt_token_ids": [1, 2, 3], "token_ids": [4]})).prompt_ids == [1, 2, 3]


def test_a_text_completion_is_content():
    found = read({"choices": [{"index": 0, "text": " four", "finish_reason": "length", "token_ids": [7]}]})
    assert (found.content, found.reasoning, found.output_ids, found.finish_reason) == (" four", None, [7], "length")


def test_generate_gives_ids_text_and_counts():
    meta = {
        "id": "g1",
        "finish_reason": {"type": "stop", "matched": 163586},
        "prompt_tokens": 9,
        "completion_tokens": 3,
    }
    found = read({"text": "Hi there", "output_ids": [18699, 1459, 163586], "meta_info": meta})
    assert found.output_ids == [18699, 1459, 163586]
    assert (found.content, found.finish_reason, found.prompt_tokens, found.completion_tokens) == (
        "Hi there",
        "stop",
        9,
        3,
    )
    assert found.response_id == "g1"


def test_a_batch_of_generate_is_an_answer_each():
    one = {"text": "a", "output_ids": [1], "meta_info": {"finish_reason": {"type": "length", "length": 1}}}
    assert [getattr(found, "finish_reason", None) for found in read_responses([one, one])] == ["length", "length"]


def test_white_space_before_the_json_is_a_connection_kept_alive():
    raw = '\n         \n         {"choices":[{"finish_reason":"stop","message":{"content":"ok"}}]}'
    assert read(raw).content == "ok"
    assert read(raw.encode()).content == "ok"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"reasoning": "R"}, "R"),
        ({"reasoning_content": "R"}, "R"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "R", "index": 0}]}, "R"),
        (
            {
                "reasoning": "R",
                "reasoning_content": "R",
                "reasoning_details": [{"type": "reasoning.text", "text": "R", "format": "unknown", "index": 0}],
            },
            "R",
        ),
        ({"reasoning_details": [{"type": "reasoning.text", "text": t} for t in ("R\n", " s")]}, "R\n s"),
        ({"reasoning": " R\n", "reasoning_content": None}, " R\n"),
        ({"reasoning": "R", "reasoning_content": ""}, "R"),
        ({"reasoning": ""}, ""),
        ({"reasoning": None}, None),
        ({}, None),
        ({"reasoning_details": []}, None),
    ],
)
def test_reasoning_is_one_text_under_three_names(message: dict[str, Any], expected: str | None):
    assert read(body({"content": "A", **message})).reasoning == expected


def test_two_reasoning_fields_that_differ_are_a_fault():
    assert fault(body({"content": "A", "reasoning": "R", "reasoning_content": "R "})) == "reasoning_fields_differ"


@pytest.mark.parametrize(
    "details",
    [
        [{"type": "reasoning.summary", "summary": "short summary"}, {"type": "reasoning.encrypted", "data": "xxx"}],
        [{"type": "reasoning.text", "text": "short summary"}, {"type": "reasoning.encrypted", "data": "xxx"}],
        [{"type": "reasoning.other"}],
    ],
)
def test_summaries_and_encrypted_parts_are_not_what_was_sampled(details: list[dict[str, Any]]):
    message = {"content": "A", "reasoning": "short summary", "reasoning_details": details}
    assert fault(body(message)) == "reasoning_not_sampled_text"


def test_reasoning_tokens_are_kept_apart_from_completion_tokens():
    usage = {"completion_tokens": 500, "completion_tokens_details": {"reasoning_tokens": 420}}
    found = read(body(usage=usage))
    assert (found.completion_tokens, found.reasoning_tokens) == (500, 420)


def test_usage_that_is_absent_is_not_zero():
    raw = body()
    del raw["usage"]
    found = read(raw)
    assert (found.prompt_tokens, found.completion_tokens, found.reasoning_tokens) == (None, None, None)
    assert read(body(usage={"completion_tokens": 0})).completion_tokens == 0
    assert read(body(usage={"completion_tokens_details": None})).completion_tokens is None


def test_a_finish_reason_that_is_missing_stays_missing():
    assert read(body(choice={"finish_reason": None})).finish_reason is None
    assert read({"choices": [{"message": {"content": "A"}}]}).finish_reason is None


def test_content_may_be_a_list_of_text_parts():
    assert read(body({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]})).content == "a b"
    assert fault(body({"content": [{"type": "image_url", "image_url": "x"}]})) == "content_not_text"


def test_parsed_calls_are_kept_as_json():
    calls = [{"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": '{"path": "é"}'}}]
    found = read(body({"content": None, "tool_calls": calls}, {"finish_reason": "tool_calls"}))
    assert found.tool_calls is not None
    assert json.loads(found.tool_calls) == calls
    assert "é" in found.tool_calls
    assert read(body({"content": "A", "tool_calls": []})).tool_calls is None


@pytest.mark.parametrize(
    "raw",
    [
        {"error": {"code": 429, "message": "Rate limited upstream", "metadata": {"error_type": "rate_limit_exceeded"}}},
        body(choice={"finish_reason": "error", "error": {"code": 502, "message": "Upstream closed"}}),
        body(choice={"finish_reason": "error"}),
        body(error={"message": "late"}),
        {"object": "error", "message": "too long", "code": 400},
        {"error": "gone"},
        {"text": "", "output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}},
    ],
)
def test_an_error_is_never_an_answer(raw: dict[str, Any]):
    assert fault(raw) == "provider_error"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("{", "not_json"),
        (b"\xff\xfe\xfa", "not_json"),
        ("", "not_json"),
        ("[" * 100_000, "not_json"),
        ("7", "not_a_response"),
        ("[]", "not_a_response"),
        ("[1]", "not_a_response"),
        ("null", "not_a_response"),
        ("{}", "no_choices"),
        ({"choices": []}, "no_choices"),
        ({"choices": None}, "no_choices"),
        ({"choices": [7]}, "not_a_response"),
        ({"choices": [{}]}, "not_a_response"),
        (body({"content": 7}), "not_a_response"),
        (body({"content": "A", "reasoning_details": "R"}), "not_a_response"),
        (body(choice={"token_ids": [1, "2"]}), "ids_not_integers"),
        (body(choice={"token_ids": [1, -2]}), "ids_not_integers"),
        (body(choice={"token_ids": [2**31]}), "ids_not_integers"),
        (body(choice={"token_ids": [True]}), "ids_not_integers"),
        (body(usage={"completion_tokens": "14"}), "usage_not_a_count"),
        (body(usage={"completion_tokens": -1}), "usage_not_a_count"),
        (body(usage=[14]), "usage_not_a_count"),
    ],
)
def test_what_is_no_answer_is_named(raw: Any, expected: str):
    assert fault(raw) == expected


@pytest.mark.parametrize("field", ["content", "reasoning"])
def test_half_of_a_surrogate_pair_is_a_fault(field: str):
    assert fault(json.dumps(body({"content": "A", field: "x\ud83d"}))) == "lone_surrogate"
    whole = read(json.dumps(body({"content": "A", field: "x\ud83d\ude00"})))
    assert getattr(whole, field) == "x\U0001f600"


def test_several_choices_are_an_answer_each_without_counts_of_their_own():
    raw = body()
    raw["choices"] = [
        {"index": 1, "finish_reason": "stop", "message": {"content": "b"}},
        {"index": 0, "finish_reason": "error", "message": {"content": "a"}},
    ]
    first, second = read_responses(raw)
    assert isinstance(first, Fault)
    assert isinstance(second, Response)
    assert (second.content, second.completion_tokens, second.prompt_tokens) == ("b", None, 12)
    assert fault(raw) == "several_choices"


def test_choices_with_one_index_are_a_fault():
    raw = body()
    raw["choices"] *= 2
    assert fault(raw) == "choices_repeated"


def test_a_row_has_what_was_asked_beside_what_was_answered():
    asked = Asked("ab" * 16, "chat", '{"messages":[]}', "openrouter", max_tokens=64, quantization="int4", provider="B")
    row = answer_row(read(body()), asked)
    ANSWERS.table([row])
    assert (row["root_id"], row["max_tokens"], row["quantization"]) == ("ab" * 16, 64, "int4")
    assert row["provider"] == "ProviderA"  # who answered, not who was asked


FIELDS = (
    "choices message content reasoning reasoning_details usage error finish_reason index token_ids text type "
    "completion_tokens completion_tokens_details meta_info output_ids tool_calls id"
)
KEYS = st.sampled_from(FIELDS.split()) | st.text(max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_read_to_an_end(value: Any):
    found = read_responses(json.dumps(value))
    assert found
    for answer in found:
        if isinstance(answer, Response):
            asked = Asked("ab" * 16, "chat", "{}", "api")
            ANSWERS.table([answer_row(answer, asked)])
