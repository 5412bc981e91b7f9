"""Servers that trim white space beside the reasoning's markers: no row is believed whose sampled ids were others."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.sections import CountingRule, ReconstructionSpec
from tasks.formats.registry import bind
from tasks.reconstruct.counting import FEWEST_ROWS
from tasks.reconstruct.folder import stand_in
from tasks.reconstruct.row import Means, Row
from tests.reconstruct.given import PROVIDER, ids, reason, said, verdicts
from tests.tokenizers import codec

FAMILIES = {
    "qwen3": "qwen-3",
    "qwen3.5": "qwen-3.5",
    "qwq": "qwq-32b",
    "deepseek-r1": "deepseek-r1",
    "deepseek-r1-0528": "deepseek-r1-0528-qwen3-8b",
    "minimax-m2": "minimax",
    "glm-4.5": "glm-4.5v",
}
MEANS: dict[str, Means] = {}


def means(name: str) -> Means:
    """What a family's answers are judged with, thinking on."""
    if name not in MEANS:
        own = codec(FAMILIES[name])
        bound = bind(name, own)
        tail = stand_in(bound, own, True)
        MEANS[name] = Means(bound, own, ReconstructionSpec(), stand_in=lambda _: tail)
    return MEANS[name]


class Server(NamedTuple):
    """What it does to an answer: trims its reasoning, its content, and bills the end id."""

    reasoning: bool = True
    content: bool = True
    end: bool = True


def shown(name: str, server: Server, reasoning: str, content: str, tail: bool = True, **more: Any) -> dict[str, Any]:
    """A row of the answer that the family's model samples, as a server shows it."""
    sampled = answer(name, reasoning, content, tail)
    seams = means(name).token_format.seams
    thought = f"{seams.after_open}{reasoning}{seams.before_close * tail}"
    text = f"{seams.after_close}{content}"
    return said(
        thought.strip() if server.reasoning else thought,
        text.strip() if server.content else text,
        len(sampled) - (not server.end),
        prompt_ids=None,
        **more,
    )


def answer(name: str, reasoning: str, content: str, tail: bool = True) -> list[int]:
    """The ids that the model samples."""
    own, bound = codec(FAMILIES[name]), means(name).token_format
    seams = bound.seams
    thought = f"{seams.after_open}{reasoning}{seams.before_close * tail}"
    lead = "\n" if name == "glm-4.5" else ""
    before, after, leading = own.encode([thought, f"{seams.after_close}{content}", lead])
    opens = [own.markers["<think>"]] if bound.opens_in_prompt[True] == "unsaid" else []
    return [*leading, *opens, *before, own.markers["</think>"], *after, bound.end_ids[0]]


WORD = st.sampled_from(["four", "four.", "x)", "1", "}", "```", "wait...", "so:", "é", "中文", "ok!", "$$"])
TEXT = st.lists(WORD, min_size=1, max_size=4).map(" ".join)
SERVERS = st.builds(Server, st.booleans(), st.booleans(), st.booleans())


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40)
@given(texts=st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=8), server=SERVERS)
def test_no_answer_is_believed_with_other_ids_than_were_sampled(
    name: str, texts: list[tuple[str, str, bool]], server: Server
):
    rows = [shown(name, server, *text, number=number) for number, text in enumerate(texts)]
    for row, text in zip(verdicts(rows, means(name)), texts, strict=True):
        if row.fault is None:
            assert ids(row) == answer(name, *text), row.answer_text


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("end", [True, False])
def test_a_server_that_keeps_white_space_is_believed(name: str, end: bool):
    keeps = Server(reasoning=False, content=False, end=end)
    rows = [shown(name, keeps, f"{word} is {word}.", word, number=n) for n, word in enumerate("abcdefg")]
    bare = answer(name, "no space", "here", tail=False)
    if name not in ("qwen3", "deepseek-r1-0528"):
        rows.append(shown(name, keeps, "no space.", "here", tail=False, number=99))
        bare = answer(name, "no space.", "here", tail=False)
    if name == "glm-4.5":  # whose readings with and without a first line end are told apart by a known rule only
        rule = {PROVIDER: CountingRule(end_counted=end)}
        own = means(name)
        found = verdicts(
            rows, Means(own.token_format, own.codec, ReconstructionSpec(counting=rule), None, own.stand_in)
        )
    else:
        found = verdicts(rows, means(name))
    assert [ids(row) for row in found[:7]] == [answer(name, f"{word} is {word}.", word) for word in "abcdefg"]
    assert all(ids(row) == bare for row in found[7:])


def judged(name: str, *rows: dict[str, Any], **rule: bool) -> list[Row]:
    own = means(name)
    counting = {PROVIDER: CountingRule(**rule)} if rule else {}
    spec = ReconstructionSpec(counting=counting)
    return verdicts(rows, Means(own.token_format, own.codec, spec, None, own.stand_in))


def test_an_end_id_that_is_not_billed_does_not_make_up_for_a_trimmed_line():
    trims = Server(end=False)
    rows = [shown("deepseek-r1", trims, "Two and two is four.", "Four.", number=n) for n in range(9)]
    assert {reason(row) for row in judged("deepseek-r1", *rows)} == {"trimmed_whitespace"}
    assert {reason(row) for row in judged("deepseek-r1", *rows, end_counted=False)} == {"trimmed_whitespace"}


def test_returned_ids_tell_what_is_billed():
    own = codec("qwen-3")
    output = [*own.encode(["Four."])[0], own.markers["<|im_end|>"]]
    plain = [said(None, None, 2, output_ids=output, prompt_ids=[1], number=n) for n in range(FEWEST_ROWS)]
    trimmed = shown("qwen3", Server(reasoning=False, end=False), "Two and two is four.", "Four.", number=50)
    # it is as long as an answer of which nothing was trimmed, of a provider that bills the end
    assert reason(judged("qwen3", trimmed)[0]) == "trimmed_whitespace"
    found = judged("qwen3", *plain, trimmed)
    assert [row.fault for row in found[:-1]] == [None] * FEWEST_ROWS
    assert (reason(found[-1]), found[-1].delta) == ("not_canonical", -1)  # reasoning shows that white space is kept


def test_a_line_end_that_is_one_id_with_what_it_follows_is_seen():
    trims = Server(content=False)
    row = shown("qwq", trims, "Two and two is four.", "Four.")
    assert row["completion_tokens"] == len(answer("qwq", "Two and two is four.", "Four.", tail=False))
    assert reason(judged("qwq", row, end_counted=True)[0]) == "trimmed_whitespace"
    kept = shown("qwq", Server(reasoning=False, content=False), "Two and two is four.", "Four.", number=2)
    assert [row.fault for row in judged("qwq", row | {"reasoning": "Two and two is four"}, kept)][1] is None


def test_without_a_count_white_space_that_may_be_missing_is_named():
    bare = shown("qwq", Server(), "R", "A") | {"completion_tokens": None}
    assert reason(judged("qwq", bare)[0]) == "trimmed_whitespace"
    kept = shown("qwq", Server(reasoning=False, content=False), "R", "A") | {"completion_tokens": None}
    assert judged("qwq", kept)[0].delta_class == "unverified"


def test_glm_may_have_begun_a_line_or_not_bill_the_end():
    own, close = codec("glm-4.5v"), ["<think>", "</think>"]
    bare = [own.markers[close[0]], *own.encode(["R"])[0], own.markers[close[1]], *own.encode(["\nA"])[0]]
    row = said("R", "\nA", len(bare) + 1, prompt_ids=None)
    assert reason(judged("glm-4.5", row)[0]) == "trimmed_whitespace"
    assert ids(judged("glm-4.5", row, end_counted=True)[0])[:-1] == bare
    assert ids(judged("glm-4.5", row, end_counted=False)[0])[:-1] == [*own.encode(["\n"])[0], *bare]
