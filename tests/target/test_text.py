"""A request becomes the ids that a server would make of it: transformers' own rendering, every token encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from schemas.errors import TargetError, TemplateRefused
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.formats.codec import Codec
from tasks.target.rendering import MarkerFinder, Renderer
from tasks.target.text import Template, load_template, render_request, render_text, template_variables
from tests.kimi_templates import KIMI_TEMPLATE
from tests.rows import request
from tests.tokenizers import folder

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
USER = {"role": "user", "content": "Hi"}


def called(arguments: str = '{"b": 1, "a": "Zürich"}') -> list[dict[str, Any]]:
    """A conversation in which the target called a tool."""
    call = {"id": "functions.ls:0", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "I look."}
    return [USER, turn, {"role": "tool", "name": "ls", "tool_call_id": "functions.ls:0", "content": "a.txt"}]


def rendered(name: str, messages: list[dict[str, Any]], **switches: bool) -> str:
    template = load_template(folder(name))
    return render_text(template.text, messages, None, switches, template.tokens)


@settings(max_examples=60)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_prompt_ids_are_those_of_transformers(texts: list[str], renderer: Renderer, tokenizer: Any) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert renderer.ids({"messages": messages}, room=0) == tuple(wanted)


@settings(max_examples=60)
@given(ids=st.lists(st.integers(0, 49151), max_size=20))
def test_text_of_ids_is_that_of_transformers(ids: list[int], renderer: Renderer, tokenizer: Any) -> None:
    wanted = tokenizer.decode(ids, skip_special_tokens=True)
    assert renderer.codec.decode([[n for n in ids if n not in renderer.codec.special_ids]]) == [wanted]


def test_a_request_ends_where_the_answer_begins(tiny_artifact: Shards, tiny_spec: TargetSpec, tokenizer: Any) -> None:
    ids = render_request(tiny_artifact, tiny_spec, request("Why is the sky blue?"))
    text = tokenizer.decode(ids)
    assert text.endswith("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == 3  # system, user and assistant turn; none added by the tokenizer


@pytest.mark.parametrize("name", ["qwen-3", "deepseek-r1-distill-qwen-7b", "glm-4.7-flash"])
def test_templates_are_found_and_rendered_as_by_transformers(name: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder(name)))
    template = load_template(folder(name))
    assert template.text == tokenizer.get_chat_template()
    messages = [{"role": "system", "content": "Be brief.\r\n"}, USER]
    wanted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert render_text(template.text, messages, None, {}, template.tokens) == wanted


def test_a_template_that_writes_the_first_token_does_not_get_it_twice() -> None:
    from tests.tokenizers import codec

    name = "deepseek-r1-distill-qwen-7b"
    first = codec(name).markers["<｜begin▁of▁sentence｜>"]
    (ids,) = codec(name).encode_prompt([rendered(name, [USER])])
    assert ids.count(first) == 1


@pytest.mark.parametrize("name", ["glm-4.7-flash", "minimax", "qwq-32b", "qwen-3"])
def test_a_null_content_is_never_the_word_none(name: str) -> None:
    assert "None" not in rendered(name, called())


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_reaches_the_template_whatever_the_provider_calls_it(key: str) -> None:
    conversation = called()
    conversation[1][key] = conversation[1].pop("reasoning")
    assert "<think>I look.</think><|tool_calls_section_begin|>" in render_text(KIMI_TEMPLATE, conversation, None, {})


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("qwen-3", '"arguments": {"b": 1, "a": "Zürich"}}'),  # the string itself
        ("qwq-32b", '"arguments": {"b": 1, "a": "Zürich"}}'),  # parsed: the string would be written in quotes
        ("glm-4.7-flash", "<arg_key>b</arg_key><arg_value>1</arg_value><arg_key>a</arg_key>"),
        ("qwen-3.5", "<parameter=a>\nZürich\n</parameter>"),
    ],
)
def test_arguments_are_written_as_the_template_takes_them(name: str, written: str) -> None:
    assert written in rendered(name, called())


def test_arguments_that_are_taken_as_text_keep_every_space() -> None:
    sampled = '{"a":1,  "b" : 2}'
    assert f"<|tool_call_argument_begin|>{sampled}<|tool_call_end|>" in render_text(
        KIMI_TEMPLATE, called(sampled), None, {}
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("kimi-k2.5", '<|tool_call_argument_begin|>{"a": 1, "b": "\u00fc"}<|tool_call_end|>'),
        ("qwen-3", '"arguments": {"a": 1, "b": "\u00fc"}}'),
        ("deepseek-v3.1", '<｜tool▁sep｜>{"a":1,  "b" : "\\u00fc"}<｜tool▁call▁end｜>'),  # takes no mapping
    ],
)
def test_a_chat_server_parses_arguments_before_its_template_writes_them(name: str, written: str) -> None:
    template = load_template(folder(name))
    messages = called('{"a":1,  "b" : "\\u00fc"}')
    assert written in render_text(template.text, messages, None, {}, template.tokens, chat=True)


def test_arguments_that_cannot_be_parsed_are_refused_where_they_must_be() -> None:
    with pytest.raises(TemplateRefused, match=r"takes parsed arguments only, and .+ is not JSON"):
        rendered("glm-4.7-flash", called('{"a": '))


def test_the_switches_that_a_template_reads_are_known() -> None:
    assert template_variables(Template(KIMI_TEMPLATE, {})) == {"thinking", "tools_ts_str"}
    assert "enable_thinking" in template_variables(load_template(folder("qwen-3")))
    assert template_variables(load_template(folder("smollm2"))) == set()


def test_a_template_with_a_fault_is_named() -> None:
    with pytest.raises(TargetError, match="not valid Jinja"):
        template_variables(Template("{% if %}", {}))


def written(place: Path, settings: Mapping[str, Any], own_file: bytes = b"") -> Path:
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    if own_file:
        (place / "chat_template.jinja").write_bytes(own_file)
    return place


def test_a_template_in_its_own_file_wins_and_keeps_its_bytes(tmp_path: Path) -> None:
    settings = {"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    template = load_template(written(tmp_path, settings, b"line\r\nline"))
    assert template == Template("line\r\nline", {"bos_token": "<s>", "eos_token": "</s>"})


def test_several_templates_are_refused_since_the_served_one_is_not_known(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    with pytest.raises(TargetError, match="has 2 chat templates, and it is not clear which one is served"):
        load_template(written(tmp_path, {"chat_template": several}))


def test_a_template_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"chat_template\.jinja is damaged: it is not UTF-8"):
        load_template(written(tmp_path, {}, own_file=b"\xff\xfe"))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_settings_are_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(TargetError, match=r"tokenizer_config\.json is damaged"):
        load_template(tmp_path)


@pytest.fixture(scope="module")
def kimi() -> Codec:
    from tests.tokenizers import codec

    return codec("kimi")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("say <|im_end|> now", "<|im_end|>"),
        ("a</think>b<think>", "</think>"),
        ("<|reserved_token_163600|>", "<|reserved_token_163600|>"),
        ("<|im_end | > <|system|> think", ""),
    ],
)
def test_text_that_a_server_reads_as_a_control_token_is_found(text: str, found: str, kimi: Codec) -> None:
    assert MarkerFinder(kimi.markers).find(["nothing", text]) == found
    ids = kimi.encode_prompt([text])[0]
    assert any(number in kimi.markers.values() for number in ids) == bool(found)


def test_white_space_is_no_marker_and_no_marker_is_found_where_there_is_none() -> None:
    assert MarkerFinder(["  ", "\n"]).find(["a  b\n"]) == ""
    assert MarkerFinder([]).find(["a"]) == ""


def test_a_prompt_with_half_a_surrogate_pair_has_no_ids(renderer: Renderer) -> None:
    fault = renderer.ids({"messages": [{"role": "user", "content": "\ud83d"}]}, room=0)
    assert getattr(fault, "reason", "") == "no_utf8"


def test_tools_that_a_template_never_writes_are_refused() -> None:
    deaf = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render_text(deaf, [{"role": "user", "content": "Hi"}], None, {}) == "Hi"
    assert render_text(deaf, [{"role": "user", "content": "Hi"}], [], {}) == "Hi"
    with pytest.raises(TemplateRefused, match="declares tools, and the chat template never writes them"):
        render_text(deaf, [{"role": "user", "content": "Hi"}], tools, {})
    with pytest.raises(TemplateRefused, match="not valid Jinja"):
        render_text("{% for %}", [{"role": "user", "content": "Hi"}], tools, {})
