"""For any text: ids rebuilt from what a server shows of sampled ids are those ids, and no wrong count is believed."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.sections import ReconstructionSpec
from tasks.formats.codec import Codec
from tasks.formats.registry import bind
from tasks.reconstruct.counting import Counting
from tasks.reconstruct.row import Means
from tasks.reconstruct.seams import TRIMMED, bare_seams
from tests.reconstruct.given import PROVIDER, said, verdicts
from tests.tokenizers import codec

PIECES = [
    *("the", " answer", " is", "\n", "\n\n", " ", "  ", "\t", "\r\n", "\0", "12345", "'s", "x=1;", "{}", '"', "\\"),
    *("<", "|", ">", "</", "think", "<|im", "_end", "tool_call", "[", "]", "…", "ß", "İ", "e\u0301", "Å", "中文", "각"),
    *("\U0001f98a", "\U0001f469\u200d\U0001f469\u200d\U0001f467"),
]
TEXT = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=20
)
FORMATS = {
    "kimi-k2.5": (
        "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think>",
        "",
        "<|im_end|>",
    ),
    "qwen3": ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<think>", "<|im_end|>"),
}

KNOWN = {PROVIDER: Counting(source="pinned", sure=True)}


def own(name: str) -> Codec:
    return codec({"kimi-k2.5": "kimi", "qwen3": "qwen-3"}[name])


def sampled(name: str, reasoning: str, content: str, ended: bool) -> list[int]:
    """The canonical ids of an answer, made without any format: markers by name, text between them."""
    _, opens, end = FORMATS[name]
    tokenizer = own(name)
    ids = [tokenizer.markers[opens]] if opens else []
    ids += tokenizer.encode([reasoning])[0] + [tokenizer.markers["</think>"]] + tokenizer.encode([content])[0]
    return [*ids, tokenizer.markers[end]] if ended else ids


def means(name: str) -> Means:
    tokenizer = own(name)
    return Means(bind(name, tokenizer), tokenizer, ReconstructionSpec())


def shown(name: str, reasoning: str, content: str, ended: bool, billed: int | None, number: int = 0) -> dict[str, Any]:
    """The answer as an API with a reasoning parser shows it."""
    (prompt,) = own(name).encode_prompt([FORMATS[name][0]])
    finish = "stop" if ended else "length"
    return said(reasoning, content, billed, prompt_ids=prompt, finish_reason=finish, number=number)


def has_markers(name: str, *texts: str) -> bool:
    return any(marker in text for marker in own(name).markers for text in texts)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(answers=st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=6))
def test_sampled_ids_come_back_from_their_text(name: str, answers: Sequence[tuple[str, str, bool]]):
    whole = [(r, c, ended) for r, c, ended in answers if r and c and not has_markers(name, r, c)]
    assume(whole)
    wanted = [sampled(name, *parts) for parts in whole]
    rows = [
        shown(name, *parts, len(ids), number) for number, (parts, ids) in enumerate(zip(whole, wanted, strict=True))
    ]
    habits = means(name).token_format.seams
    for row, ids in zip(verdicts(rows, means(name), KNOWN), wanted, strict=True):
        if row.fault and bare_seams(row, habits):  # with white space that may have been trimmed the count may fit too
            assert row.fault.reason == TRIMMED
            continue
        assert row.fault is None, row.fault
        assert row.completion is not None
        assert row.completion.tolist() == ids
        assert (row.delta, row.delta_class) == (0, "exact")


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(reasoning=TEXT, content=TEXT, ended=st.booleans(), off=st.integers(-30, 30).filter(bool))
def test_a_damaged_count_is_never_accepted(name: str, reasoning: str, content: str, ended: bool, off: int):
    assume(reasoning and content and not has_markers(name, reasoning, content))
    billed = len(sampled(name, reasoning, content, ended)) + off
    assume(billed >= 0)
    (row,) = verdicts([shown(name, reasoning, content, ended, billed)], means(name), {})
    assert row.fault is not None
    assert row.delta == -off
    assert row.fault.reason == row.delta_class


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(reasoning=st.none() | TEXT, content=st.none() | TEXT, ended=st.booleans(), markers=st.data())
def test_no_text_is_accepted_with_other_ids_than_it_has(
    name: str, reasoning: str | None, content: str | None, ended: bool, markers: st.DataObject
):
    names = [*own(name).markers][:40]
    mixed = "".join(markers.draw(st.lists(st.sampled_from([*PIECES, *names, "</think>"]), max_size=6)))
    for said_content in (content, mixed):
        row = shown(name, reasoning or "", said_content or "", ended, None) | {"reasoning": reasoning}
        (found,) = verdicts([row], means(name), {})
        if found.fault is None and found.completion is not None:
            text = own(name).decode([found.completion.tolist()])[0]
            assert text == found.answer_text
            assert (said_content or "") in text
