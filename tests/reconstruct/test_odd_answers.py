"""Odd answers of many families, each as a message and as what was sampled: taken with these ids, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.answers import ANSWERS
from schemas.sections import ReconstructionSpec
from tasks.formats.registry import bind
from tasks.reconstruct.assemble import judge
from tasks.reconstruct.counting import Counting
from tasks.reconstruct.folder import stand_in
from tasks.reconstruct.row import Means
from tasks.responses import Asked, Response, answer_row, read_response
from tests.reconstruct.given import PROVIDER
from tests.rows import prompt_id
from tests.tokenizers import codec

FAMILIES = {
    "kimi-k2": "kimi",
    "kimi-k2-thinking": "kimi",
    "kimi-k2.5": "kimi",
    "qwen3": "qwen-3",
    "deepseek-r1": "deepseek-r1",
    "deepseek-v3.1": "deepseek-v3.1",
    "glm-4.5": "glm-4.5v",
    "glm-4.7": "glm-4.7-flash",
    "minimax-m2": "minimax",
    "gpt-oss": "gpt-oss",
}
BEGIN, CALL, ARGUMENTS = "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
FINISH, SECTION_END = "<|tool_call_end|>", "<|tool_calls_section_end|>"
SECTION = f"{BEGIN}{CALL}functions.f:0{ARGUMENTS}{{}}{FINISH}{SECTION_END}"
SECTION_IDS = (f"@{BEGIN}", f"@{CALL}", "functions.f:0", f"@{ARGUMENTS}", "{}", f"@{FINISH}", f"@{SECTION_END}")
OPEN, CLOSE, END, R1_END = "@<think>", "@</think>", "@<|im_end|>", "@<｜end▁of▁sentence｜>"
ANALYSIS, FINAL = ("@<|channel|>", "analysis", "@<|message|>"), ("@<|channel|>", "final", "@<|message|>")
NEXT = ("@<|end|>", "@<|start|>", "assistant")
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
LONG = "z" * 25_000


def sampled_ids(name: str, parts: tuple[str, ...]) -> list[int]:
    """Ids of parts: a marker's name after @, or text."""
    own = codec(FAMILIES[name])
    return [n for part in parts for n in ([own.markers[part[1:]]] if part[0] == "@" else own.encode([part])[0])]


def decided(
    name: str,
    message: dict[str, Any],
    parts: tuple[str, ...],
    finish: str | None = "stop",
    off: int | None = 0,
    thinking: bool = True,
    limit: int | None = None,
) -> list[int] | str:
    """The ids of an accepted answer, or why it is refused, under a known counting rule."""
    own = codec(FAMILIES[name])
    bound = bind(name, own)
    tail = stand_in(bound, own, thinking)
    usage = {} if off is None else {"completion_tokens": len(sampled_ids(name, parts)) + off}
    body = {"provider": PROVIDER, "choices": [{"finish_reason": finish, "message": message}], "usage": usage}
    response = read_response(body)
    if not isinstance(response, Response):
        return response.reason
    row = answer_row(response, Asked(prompt_id(1), "odd", '{"messages":[]}', "api", max_tokens=limit))
    means = Means(bound, own, ReconstructionSpec(), stand_in=lambda _: tail)
    (found,) = judge(ANSWERS.table([row]), means, {PROVIDER: Counting(source="pinned", sure=True)})
    return found.fault.reason if found.fault else [] if found.completion is None else found.completion.tolist()


def said(reasoning: Any, content: Any) -> dict[str, Any]:
    return {"reasoning": reasoning, "content": content}


def raw(content: str) -> dict[str, Any]:
    return {"content": content}


K = "kimi-k2.5"
TAKEN: list[tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = [
    (K, said("think " + SECTION, "done"), ("think ", *SECTION_IDS, CLOSE, "done", END), {}),
    (K, said("think " + SECTION, "done"), ("think " + SECTION, CLOSE, "done", END), {}),
    (K, raw("think" + SECTION), ("think", *SECTION_IDS, END), {}),
    (K, raw("t</think>" + SECTION + "mid" + SECTION), ("t", CLOSE, *SECTION_IDS, "mid", *SECTION_IDS, END), {}),
    (K, said("r", SECTION + " bye"), ("r", CLOSE, *SECTION_IDS, " bye", END), {}),
    (K, said("r", f"a{SECTION_END}b"), ("r", CLOSE, f"a{SECTION_END}b", END), {}),
    (K, raw(f"t</think>{BEGIN}{CALL}f"), ("t", CLOSE, f"@{BEGIN}", f"@{CALL}", "f"), {"finish": "length"}),
    (K, raw("a</think>b</think>c"), ("a", CLOSE, "b</think>c", END), {}),
    (K, said("say </think> now", "c"), ("say </think> now", CLOSE, "c", END), {}),
    (K, said("", "c"), (CLOSE, "c", END), {}),
    (K, said(" \n", "c"), (" \n", CLOSE, "c", END), {}),
    (K, said("a\r\nb\0", "\ufeffc\r\n"), ("a\r\nb\0", CLOSE, "\ufeffc\r\n", END), {}),
    (K, said("e\u0301", FAMILY), ("e\u0301", CLOSE, FAMILY, END), {}),
    (K, said("a", "use <|im_end|> here"), ("a", CLOSE, "use <|im_end|> here", END), {}),
    (K, said("a", "x<|media_pad|>y"), ("a", CLOSE, "x<|media_pad|>y", END), {}),
    (K, said("a", LONG), ("a", CLOSE, LONG, END), {}),
    (K, said("a", [{"type": "text", "text": "c"}, "d"]), ("a", CLOSE, "cd", END), {}),
    (K, said("a", "c") | {"tool_calls": []}, ("a", CLOSE, "c", END), {"finish": "tool_calls"}),
    (K, said("a", "c d"), ("a", CLOSE, "c d"), {"limit": 4}),
    (K, said("a", "c"), ("a", CLOSE, "c", END), {"off": None}),
    (K, raw("hi </think> x"), ("hi </think> x", END), {"thinking": False}),
    ("kimi-k2-thinking", raw("<think>a</think>b"), (OPEN, "a", CLOSE, "b", END), {}),
    ("kimi-k2-thinking", said("a", "b"), (OPEN, "a", CLOSE, "b", END), {}),
    ("qwen3", raw("<think>\na\n</think>\n\nb"), (OPEN, "\na\n", CLOSE, "\n\nb", END), {}),
    ("qwen3", said("\n\n", "\n\nb"), (OPEN, "\n\n", CLOSE, "\n\nb", END), {}),
    ("qwen3", said("\na\n", "\n\ncafe\u0301"), (OPEN, "\na\n", CLOSE, "\n\ncafe\u0301", END), {}),
    (
        "qwen3",
        said("\na\n", "\n\n<tool_call>\n{}\n</tool_call>"),
        (OPEN, "\na\n", CLOSE, "\n\n", "@<tool_call>", "\n{}\n", "@</tool_call>", END),
        {},
    ),
    ("deepseek-r1", said("a\n", "\n\nb"), ("a\n", CLOSE, "\n\nb", R1_END), {}),
    ("deepseek-v3.1", raw("b"), ("b", R1_END), {"thinking": False}),
    (
        "glm-4.7",
        said("a", "<tool_call>f</tool_call>\n"),
        ("a", CLOSE, "@<tool_call>", "f", "@</tool_call>", "\n", "@<|observation|>"),
        {},
    ),
    ("glm-4.5", said("a", "\nb"), ("\n", OPEN, "a", CLOSE, "\nb", "@<|user|>"), {}),
    ("minimax-m2", said("a\n", "\n\nb"), ("a\n", CLOSE, "\n\nb", "@[e~["), {}),
    ("gpt-oss", said("a", "b"), (*ANALYSIS, "a", *NEXT, *FINAL, "b", "@<|return|>"), {}),
    ("gpt-oss", said("a", None), (*ANALYSIS, "a"), {"finish": "length"}),
]
REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = [
    (K, raw(f"t</think>{BEGIN}{CALL}f"), ("t", CLOSE, f"@{BEGIN}", f"@{CALL}", "f", END), {}),
    (K, raw("a</think>b</think>c"), ("a", CLOSE, "b", CLOSE, "c", END), {}),
    (K, said("say </think> now", "c"), ("say ", CLOSE, " now", CLOSE, "c", END), {}),
    (K, said(None, "c d"), (CLOSE, "c d", END), {}),
    (K, said("abc", ""), ("abc", CLOSE, END), {}),
    (K, said("a", "hi \ufffd"), ("a", CLOSE, "hi ", "\U0001f98a"), {"finish": "length", "off": -1}),
    (K, said("a", "hi "), ("a", CLOSE, "hi ", "\U0001f98a"), {"finish": "length", "off": -1}),
    (K, said("a", "x<|im_end|>"), ("a", CLOSE, "x", END), {}),
    (K, said("ab", "cd"), ("ab", CLOSE, "cd", END), {"off": 1}),
    (K, said("ab", "cd"), ("ab", CLOSE, "cd", END), {"off": -1}),
    (K, said("ab", "cd"), ("ab", CLOSE, "cd", END), {"finish": None}),
    (K, said("ab", [{"type": "image_url"}]), ("ab", CLOSE, END), {}),
    (K, said("a", None) | {"refusal": "no"}, ("a", CLOSE, END), {}),
    (K, said("a", "\ud83d"), ("a", CLOSE, "x", END), {}),
    (K, said("a", "c") | {"reasoning_content": "b"}, ("a", CLOSE, "c", END), {}),
    (K, said("a", "hi"), ("a", "hi", END), {"thinking": False}),
    ("kimi-k2", said("a", "b"), ("a", "b", END), {}),
    ("qwen3", said("ab", "cd"), (OPEN, "\nab\n", CLOSE, "\n\ncd", END), {}),
    ("qwen3", said("ab", "cd"), (OPEN, "\nab\n", CLOSE, "\n\ncd", END), {"off": -1}),
    ("qwen3", said(None, "cd"), (OPEN, "\n\n", CLOSE, "\n\ncd", END), {}),
    ("deepseek-r1", said("four.", "\n\nb"), ("four.\n", CLOSE, "\n\nb", R1_END), {}),
    ("gpt-oss", said("ab", "c"), (*ANALYSIS, "a", *NEXT, *ANALYSIS, "b", *NEXT, *FINAL, "c", "@<|return|>"), {}),
    ("gpt-oss", said("ab", None), (*ANALYSIS, "ab", "@<|end|>", "@<|start|>"), {"finish": "length"}),
]


@pytest.mark.parametrize(("name", "message", "parts", "more"), TAKEN)
def test_an_answer_is_taken_with_the_ids_that_were_sampled(
    name: str, message: dict[str, Any], parts: tuple[str, ...], more: dict[str, Any]
):
    assert decided(name, message, parts, **more) == sampled_ids(name, parts)


@pytest.mark.parametrize(("name", "message", "parts", "more"), REFUSED)
def test_an_answer_whose_ids_cannot_be_known_is_refused(
    name: str, message: dict[str, Any], parts: tuple[str, ...], more: dict[str, Any]
):
    assert isinstance(decided(name, message, parts, **more), str)
