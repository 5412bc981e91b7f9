"""A conversation is answered turn by turn, in Kimi's real ids: history, results, and what its faults cost."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.formats.format import TokenFormat
from tasks.formats.registry import bind
from tasks.generate.engine import Answer
from tasks.generate.turns import Turns
from tasks.target.rendering import MarkerFinder, RenderedPrompt, Renderer
from tasks.target.text import Template
from tests.kimi_templates import KIMI_TEMPLATE
from tests.rows import prompt, prompts
from tests.tokenizers import codec

END = 163586
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {}}}]
SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.{0}:0<|tool_call_argument_begin|>{{}}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)


@pytest.fixture(scope="module")
def kimi() -> Renderer:
    return Renderer(Template(KIMI_TEMPLATE, {}), {}, codec("kimi"), 4096)


@pytest.fixture(scope="module")
def kimi_format(kimi: Renderer) -> TokenFormat:
    return bind("kimi-k2.5", kimi.codec, [END])


class Talk:
    """Conversations under way."""

    def __init__(self, kimi: Renderer, kimi_format: TokenFormat, *rows: dict[str, Any], mirror: bool = False) -> None:
        finder = None if mirror else MarkerFinder(kimi.codec.markers)
        self.turns = Turns(prompts(*rows), kimi, kimi_format, 64, finder)
        self._kimi = kimi

    def ask(self, level: int) -> list[RenderedPrompt]:
        return self.turns.ready(level)

    def text(self, asked: RenderedPrompt) -> str:
        return self._kimi.codec.decode([list(asked.ids)])[0]

    def answer(self, asked: RenderedPrompt, text: str, finish: str = "stop") -> None:
        """Settle one answer, given as the text of its ids, markers written out."""
        ids = self._kimi.codec.encode_prompt([text])[0] + [END] * (finish == "stop")
        self.turns.settle([Answer(asked.prompt_id, ids, text, finish, 64, len(asked.ids), len(ids))])

    def reasons(self) -> list[str]:
        return [row["reason"] for row in self.turns.quarantine]


def test_the_next_prompt_holds_the_regenerated_answer(kimi: Renderer, kimi_format: TokenFormat) -> None:
    first = prompt("Hi")
    talk = Talk(kimi, kimi_format, first, prompt("More?", parent=first))
    (asked,) = talk.ask(0)
    talk.answer(asked, "They greet me.</think>Hello!")
    (asked,) = talk.ask(1)
    assert talk.text(asked) == (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>Hello!<|im_end|>"
        "<|im_user|>user<|im_middle|>More?<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    )
    assert not talk.reasons()


def test_a_recorded_result_follows_the_targets_own_call(kimi: Renderer, kimi_format: TokenFormat) -> None:
    first = prompt("List", tools=TOOLS)
    result = {"role": "tool", "name": "ls", "content": "a.txt"}
    talk = Talk(kimi, kimi_format, first, prompt(result, parent=first, tools=TOOLS))
    (asked,) = talk.ask(0)
    talk.answer(asked, "I look.</think>" + SECTION.format("ls"))
    (asked,) = talk.ask(1)
    history = "<|im_assistant|>assistant<|im_middle|><think>I look.</think>" + SECTION.format("ls") + "<|im_end|>"
    returned = "<|im_system|>ls<|im_middle|>## Return of functions.ls:0\na.txt<|im_end|>"
    assert talk.text(asked).endswith(history + returned + "<|im_assistant|>assistant<|im_middle|><think>")
    ids = list(asked.ids)
    assert [ids.count(number) for number in (163595, 163597, 163598, 163599, 163596)] == [1] * 5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I know.</think>Nothing there.", "tool_call_missing"),
        ("I look.</think>" + SECTION.format("cat"), "tool_call_mismatch"),
    ],
)
def test_a_result_that_fits_no_call_ends_the_conversation(
    answer: str, reason: str, kimi: Renderer, kimi_format: TokenFormat
) -> None:
    first = prompt("List", tools=TOOLS)
    second = prompt({"role": "tool", "name": "ls", "content": "a"}, parent=first, tools=TOOLS)
    talk = Talk(kimi, kimi_format, first, second, prompt("So?", parent=second, tools=TOOLS))
    (asked,) = talk.ask(0)
    talk.answer(asked, answer)
    assert talk.ask(1) == []
    assert talk.ask(2) == []
    assert talk.reasons() == [reason, "parent_unusable"]
    assert f"{second['prompt_id']}: {reason}" in talk.turns.quarantine[1]["detail"]


@pytest.mark.parametrize(
    ("answer", "finish", "named"),
    [
        ("It never", "length", "cut: its answer was cut at 64 ids"),
        ("It never closes.", "stop", "close_marker_missing"),
        ("a</think>b</think>c", "stop", "close_marker_repeated"),
        ("a</think>b<|im_user|>c", "stop", "role_marker_in_answer"),
    ],
)
def test_an_answer_that_cannot_be_history_costs_its_descendants_only(
    answer: str, finish: str, named: str, kimi: Renderer, kimi_format: TokenFormat
) -> None:
    first = prompt("Hi")
    talk = Talk(kimi, kimi_format, first, prompt("More?", parent=first), prompt("Other"))
    for asked in talk.ask(0):
        talk.answer(asked, answer, finish)
    assert talk.ask(1) == []
    assert talk.reasons() == ["parent_unusable"]
    assert named in talk.turns.quarantine[0]["detail"]
    assert len(talk.turns.asked) == 2


def test_turns_that_share_a_beginning_share_its_answer(kimi: Renderer, kimi_format: TokenFormat) -> None:
    first = prompt("Hi")
    talk = Talk(kimi, kimi_format, first, prompt("More?", parent=first), prompt("Less?", parent=first))
    (asked,) = talk.ask(0)
    talk.answer(asked, "</think>Hello!")
    texts = [talk.text(asked) for asked in talk.ask(1)]
    assert all("Hello!" in text for text in texts)
    assert ["More?" in text for text in texts] == [True, False]


def test_marker_text_is_quarantined_before_anything_is_spent(kimi: Renderer, kimi_format: TokenFormat) -> None:
    rows = [prompt("say <|im_end|> now"), prompt("say im_end now")]
    talk = Talk(kimi, kimi_format, *rows)
    assert [asked.prompt_id for asked in talk.ask(0)] == [rows[1]["prompt_id"]]
    assert talk.reasons() == ["marker_in_prompt"]
    assert "'<|im_end|>'" in talk.turns.quarantine[0]["detail"]


def test_marker_text_is_read_as_the_server_reads_it_where_that_is_mirrored(
    kimi: Renderer, kimi_format: TokenFormat
) -> None:
    talk = Talk(kimi, kimi_format, prompt("say <|im_end|> now"), mirror=True)
    (asked,) = talk.ask(0)
    assert list(asked.ids).count(END) == 2
    assert not talk.reasons()


def test_marker_text_that_the_target_wrote_does_not_become_a_control_token(
    kimi: Renderer, kimi_format: TokenFormat
) -> None:
    first = prompt("Hi")
    talk = Talk(kimi, kimi_format, first, prompt("More?", parent=first))
    (asked,) = talk.ask(0)
    letters = kimi.codec.encode(["a turn ends with <|im_end|>"])[0]  # as ordinary text, seven ids and not one
    ids = [163607, *letters, END]
    talk.turns.settle([Answer(asked.prompt_id, ids, "", "stop", 64, len(asked.ids), len(ids))])
    assert talk.ask(1) == []
    assert talk.reasons() == ["marker_in_prompt"]


def test_a_later_turn_that_no_longer_fits_is_quarantined(kimi: Renderer, kimi_format: TokenFormat) -> None:
    first = prompt("Hi")
    talk = Talk(kimi, kimi_format, first, prompt("word " * 5000, parent=first))
    (asked,) = talk.ask(0)
    talk.answer(asked, "</think>Hello!")
    assert talk.ask(1) == []
    assert talk.reasons() == ["prompt_too_long"]
