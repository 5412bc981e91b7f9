"""One conversation with tools, as every family of models has it: what the target samples, and what each prompt must be.

The prompts are made without the code under test: plain Jinja over the published templates of a wheel (Kimi's and
gpt-oss's are ours), messages written out by hand, and the tokenizers' own libraries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.formats.registry import bind
from tasks.generate.serve.job import Means
from tasks.target.rendering import MarkerFinder, Renderer
from tasks.target.text import load_template
from tests.formats.templates import rendered
from tests.rows import prompt
from tests.tokenizers import codec, folder

CONTEXT = 4096
PARAMETERS = {  # keys sorted, as prompts have them
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "wind": {"type": "boolean"}},
    "required": ["city"],
    "type": "object",
}
TOOLS = [{"type": "function", "function": {"name": "forecast", "description": "Tells.", "parameters": PARAMETERS}}]
TYPESCRIPT = """\
# Tools

## functions
namespace functions {
// Tells.
type forecast = (_: {
  city: string,
  days?: number,
  wind?: boolean
}) => any;
}
"""
ROME, OSLO = {"city": "Rome", "days": 2}, {"city": "Oslo", "wind": True}
SUN, SNOW = "sun, 21", "snow, -3"
ASK, MORE = {"role": "user", "content": "Rome or Oslo?"}, {"role": "user", "content": "And tomorrow?"}

Message = dict[str, Any]


def compact(value: Any) -> str:
    """JSON without spaces, as models do not write it by default."""
    return json.dumps(value, separators=(",", ":"))


@cache
def _tokenizer(path: Path) -> Any:
    return Tokenizer.from_file(str(path))


@dataclass(frozen=True)
class Agent:
    """One family's side of the conversation.

    Attributes:
        tokenizer: with its template.
        answers: what the target samples in each turn, markers and end written out.
        reasoning: of each answer, as it comes back out of it.
        content: the same of what it says.
        arguments: of each call as it was sampled, JSON.
        ids: of the calls.
        written: what the last prompt says of the first answer's calls, if the arguments are kept as they were sampled.
        mapping: whether the template takes parsed arguments only.
        declares: the tools go into the request; else the template has no place for them.
    """

    tokenizer: str
    answers: tuple[str, str, str]
    reasoning: tuple[str, str]
    content: tuple[str, str]
    arguments: tuple[str, ...]
    ids: tuple[str, ...]
    written: str
    mapping: bool = False
    declares: bool = True
    switches: Mapping[str, bool] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def system(self) -> Message:
        """Each family's own, so that a server can tell them apart."""
        return {"role": "system", "content": f"You are {self.tokenizer}."}

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the request declares."""
        return TOOLS if self.declares else []

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The turns, as contract PROMPTS has them; results stand in another order than the target calls in."""
        results = [
            {"role": "tool", "name": "forecast", "content": text, "arguments": compact(arguments)}
            for text, arguments in ((SNOW, OSLO), (SUN, ROME))
        ][-len(self.arguments) :]
        if len(results) == 1:
            results[0].pop("arguments")
        first = prompt(self.system, ASK, tools=self.tools)
        second = prompt(*results, parent=first, tools=self.tools)
        return [first, second, prompt(MORE, parent=second, tools=self.tools)]

    def messages(self, turn: int, parsed: bool = False) -> list[Message]:
        """The messages of a turn, with parsed arguments as a template takes them, or as they are sent."""
        called: Message = {"role": "assistant", "content": self.content[0]}
        said: Message = {"role": "assistant", "content": self.content[1]}
        for message, reasoning in zip((called, said), self.reasoning, strict=True):
            if reasoning:
                message["reasoning_content"] = reasoning
        called["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": "forecast", "arguments": json.loads(text) if parsed else text},
            }
            for call_id, text in zip(self.ids, self.arguments, strict=True)
        ]
        results = [
            {"role": "tool", "name": "forecast", "content": text, "tool_call_id": call_id}
            for text, call_id in zip((SUN, SNOW), self.ids, strict=False)
        ]
        begin = [self.system, ASK]
        return [begin, [*begin, called, *results], [*begin, called, *results, said, MORE]][turn]

    def text(self, turn: int, chat: bool) -> str:
        """A turn's prompt."""
        parsed = self.mapping or (chat and self.takes_mappings)
        messages = self.messages(turn, parsed)
        for message in messages:  # gpt-oss has a name of its own for it
            if "reasoning_content" in message:
                message["thinking"] = message["reasoning_content"]
        variables = {"tools": self.tools} if self.declares else {}
        return rendered(self.template, messages, **variables, **self.switches, **self.variables)

    @property
    def takes_mappings(self) -> bool:
        """Whether the template takes parsed arguments at all."""
        return not self.tokenizer.startswith("deepseek")

    def prompt_ids(self, turn: int, chat: bool) -> list[int]:
        """A turn's prompt in ids."""
        return self.encode(self.text(turn, chat))

    def answer_ids(self, turn: int) -> list[int]:
        """What the target samples in a turn."""
        return self.encode(self.answers[turn])

    def encode(self, text: str) -> list[int]:
        """Ids of text with markers."""
        place = folder(self.tokenizer)
        if (place / "tokenizer.json").is_file():
            return _tokenizer(place / "tokenizer.json").encode(text, add_special_tokens=False).ids
        own = codec(self.tokenizer)
        parts = re.split("(" + "|".join(map(re.escape, own.markers)) + ")", text)
        rows = [[own.markers[part]] if part in own.markers else own.encode([part])[0] for part in parts if part]
        return [number for row in rows for number in row]

    @property
    def template(self) -> str:
        """Jinja."""
        return load_template(folder(self.tokenizer)).text

    def means(self, name: str) -> Means:
        """What a run renders and takes apart with."""
        own, template = codec(self.tokenizer), load_template(folder(self.tokenizer))
        renderer = Renderer(template, self.switches, own, CONTEXT)
        return Means(renderer, bind(name, own), MarkerFinder(own.markers), "ab" * 32, "")


_KIMI_CALLS = (
    "<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.forecast:0<|tool_call_argument_begin|>{"city":"Rome","days":2}<|tool_call_end|>'
    '<|tool_call_begin|>functions.forecast:1<|tool_call_argument_begin|>{"city":"Oslo","wind":true}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)
_QWEN_CALLS = (
    '<tool_call>\n{"name": "forecast", "arguments": {"city":"Rome","days":2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "forecast", "arguments": {"city":"Oslo","wind":true}}\n</tool_call>'
)
_QWEN_FUNCTIONS = (
    "<tool_call>\n<function=forecast>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>\n"
    "<tool_call>\n<function=forecast>\n<parameter=city>\nOslo\n</parameter>\n<parameter=wind>\nTrue\n</parameter>\n"
    "</function>\n</tool_call>"
)
_GLM_CALLS = (
    "<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>\n"
    "<tool_call>forecast\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>wind</arg_key>\n"
    "<arg_value>true</arg_value>\n</tool_call>"
)
_GLM_TIGHT = _GLM_CALLS.replace("\n", "")
_MINIMAX_CALLS = (
    '<minimax:tool_call>\n<invoke name="forecast">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n'
    '<invoke name="forecast">\n<parameter name="city">Oslo</parameter>\n<parameter name="wind">true</parameter>\n'
    "</invoke>\n</minimax:tool_call>"
)
_DEEPSEEK_CALLS = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>forecast<｜tool▁sep｜>{"city":"Rome","days":2}<｜tool▁call▁end｜>'
    '<｜tool▁call▁begin｜>forecast<｜tool▁sep｜>{"city":"Oslo","wind":true}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
_SAMPLED = (compact(ROME), compact(OSLO))
_READ = (json.dumps(ROME), json.dumps(OSLO))  # of values between tags
_PLACES = ("call_0", "call_1")

AGENTS: dict[str, Agent] = {
    "kimi-k2.5": Agent(
        "kimi-k2.5",
        (
            f"Two cities.</think>I look.{_KIMI_CALLS}<|im_end|>",
            "21 > -3.</think>Rome is warmer.<|im_end|>",
            "Same.</think>The same.<|im_end|>",
        ),
        ("Two cities.", "21 > -3."),
        ("I look.", "Rome is warmer."),
        _SAMPLED,
        ("functions.forecast:0", "functions.forecast:1"),
        f"<think></think>I look.{_KIMI_CALLS}<|im_end|><|im_system|>forecast<|im_middle|>## Return of "
        f"functions.forecast:0\n{SUN}<|im_end|>",
        variables={"tools_ts_str": TYPESCRIPT},
    ),
    "qwen3": Agent(
        "qwen-3",
        (
            f"<think>\nTwo cities.\n</think>\n\n{_QWEN_CALLS}<|im_end|>",
            "<think>\n21 > -3.\n</think>\n\nRome is warmer.<|im_end|>",
            "<think>\nSame.\n</think>\n\nThe same.<|im_end|>",
        ),
        ("\nTwo cities.\n", "\n21 > -3.\n"),
        ("", "\n\nRome is warmer."),
        _SAMPLED,
        _PLACES,
        f"<|im_start|>assistant\n{_QWEN_CALLS}<|im_end|>\n<|im_start|>user\n<tool_response>\n{SUN}\n</tool_response>",
    ),
    "qwen3.5": Agent(
        "qwen-3.5",
        (
            f"Two cities.\n</think>\n\nI look.\n\n{_QWEN_FUNCTIONS}<|im_end|>",
            "21 > -3.\n</think>\n\nRome is warmer.<|im_end|>",
            "Same.\n</think>\n\nThe same.<|im_end|>",
        ),
        ("Two cities.\n", "21 > -3.\n"),
        ("\n\nI look.", "\n\nRome is warmer."),
        _READ,
        _PLACES,
        f"<|im_start|>assistant\nI look.\n\n{_QWEN_FUNCTIONS}<|im_end|>\n<|im_start|>user\n<tool_response>\n{SUN}\n",
        mapping=True,
    ),
    "glm-4.5": Agent(
        "glm-4.5v",
        (
            f"<think>Two cities.</think>\n{_GLM_CALLS}<|observation|>",
            "<think>21 > -3.</think>\nRome is warmer.<|user|>",
            "<think>Same.</think>\nThe same.<|user|>",
        ),
        ("Two cities.", "21 > -3."),
        ("", "\nRome is warmer."),
        _READ,
        _PLACES,
        f"<|assistant|>\n<think></think>\n{_GLM_CALLS}<|observation|>\n<tool_response>\n{SUN}\n</tool_response>",
        mapping=True,
    ),
    "glm-4.7": Agent(
        "glm-4.7-flash",
        (
            f"Two cities.</think>I look.{_GLM_TIGHT}<|observation|>",
            "21 > -3.</think>Rome is warmer.<|user|>",
            "Same.</think>The same.<|user|>",
        ),
        ("Two cities.", "21 > -3."),
        ("I look.", "Rome is warmer."),
        _READ,
        _PLACES,
        f"<|assistant|></think>I look.{_GLM_TIGHT}<|observation|><tool_response>{SUN}</tool_response>",
        mapping=True,
    ),
    "minimax-m2": Agent(
        "minimax",
        (
            f"Two cities.</think>\nI look.\n{_MINIMAX_CALLS}[e~[",
            "21 > -3.</think>\nRome is warmer.[e~[",
            "Same.</think>\nThe same.[e~[",
        ),
        ("Two cities.", "21 > -3."),
        ("\nI look.", "\nRome is warmer."),
        _READ,
        _PLACES,
        f"]~b]ai\n\nI look.\n{_MINIMAX_CALLS}[e~[\n]~b]tool\n<response>{SUN}</response>",
        mapping=True,
    ),
    "deepseek-v3.1": Agent(
        "deepseek-v3.1",
        (
            f"I look.{_DEEPSEEK_CALLS}<｜end▁of▁sentence｜>",
            "Rome is warmer.<｜end▁of▁sentence｜>",
            "The same.<｜end▁of▁sentence｜>",
        ),
        ("", ""),
        ("I look.", "Rome is warmer."),
        _SAMPLED,
        _PLACES,
        f"<｜Assistant｜></think>I look.{_DEEPSEEK_CALLS}<｜end▁of▁sentence｜><｜tool▁output▁begin｜>{SUN}",
        declares=False,
        switches={"thinking": False},
        variables={"bos_token": "<｜begin▁of▁sentence｜>"},
    ),
    "gpt-oss": Agent(
        "gpt-oss",
        (
            "<|channel|>analysis<|message|>Two cities.<|end|><|start|>assistant to=functions.forecast<|channel|>"
            'commentary json<|message|>{"city": "Rome", "days": 2}<|call|>',
            "<|channel|>analysis<|message|>21 > -3.<|end|><|start|>assistant<|channel|>final<|message|>"
            "Rome is warmer.<|return|>",
            "<|channel|>final<|message|>The same.<|return|>",
        ),
        ("Two cities.", "21 > -3."),
        ("", "Rome is warmer."),
        (json.dumps(ROME),),
        ("call_0",),
        "<|start|>assistant to=functions.forecast<|channel|>commentary json<|message|>"
        f'{{"city": "Rome", "days": 2}}<|call|><|start|>functions.forecast to=assistant<|channel|>commentary'
        f'<|message|>"{SUN}"<|end|>',
        mapping=True,
    ),
}


def scripts(name: str, chat: bool) -> Sequence[dict[str, Any]]:
    """What a fake server knows of one family's conversation."""
    agent = AGENTS[name]
    return [
        {
            "messages": agent.messages(turn),
            "tools": agent.tools,
            "prompt_ids": agent.prompt_ids(turn, chat),
            "ids": agent.answer_ids(turn),
            "text": codec(agent.tokenizer).decode([agent.answer_ids(turn)[:-1]])[0],
        }
        for turn in range(3)
    ]
