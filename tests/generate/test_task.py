"""A shard of prompts becomes answers: the same every time, none generated twice, every row accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineError
from schemas.generation import GenerationSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.formats.registry import bind
from tasks.generate.embedded import EmbeddedEngine
from tasks.generate.engine import Answer, Sampling
from tasks.generate.task import JOURNAL, answer_shard
from tasks.generate.turns import Turns
from tasks.target.model import Target
from tasks.target.rendering import MarkerFinder, RenderedPrompt, Renderer, cut_batches
from tests.rows import prompt, prompts, request

SPEC = GenerationSpec(max_tokens=6, batch_size=3)
TEXTS = ["Hi", "What is a comet?", "Count to ten.", "Why?", "Name a river in Peru, and one in Chad.", "Go on", "So?"]
ROWS = [prompt(text) for text in TEXTS]

Prompts = Sequence[RenderedPrompt]


class Counting:
    """An engine that notes which prompts it was asked for, and can be told to die."""

    def __init__(self, engine: EmbeddedEngine, die_at: int = -1) -> None:
        self.name, self.model, self.engine, self.die_at = engine.name, engine.model, engine, die_at
        self.asked: list[str] = []

    def generate(self, batch: Prompts, sampling: Sampling, report: Callable[[int], None]) -> list[Answer]:
        if self.die_at == len(self.asked):
            raise KeyboardInterrupt
        self.asked += [request.prompt_id for request in batch]
        return self.engine.generate(batch, sampling, report)


class Answering:
    """Answers a whole shard, with rows of PROMPTS in their order."""

    def __init__(self, target: Target, renderer: Renderer) -> None:
        self.engine = EmbeddedEngine(target, renderer.codec)
        self._renderer = renderer
        self._format = bind("plain", renderer.codec, target.facts["eos_ids"])

    def turns(self, rows: Sequence[dict[str, Any]]) -> Turns:
        finder = MarkerFinder(self._renderer.codec.markers)
        return Turns(prompts(*rows), self._renderer, self._format, SPEC.max_tokens, finder)

    def __call__(
        self,
        name: str,
        rows: Sequence[dict[str, Any]] = ROWS,
        spec: GenerationSpec = SPEC,
        seed: int = 0,
        engine: Any = None,
    ) -> Shards:
        space = Workspace(f"generate_answers/{name}.parquet")
        return answer_shard(self.turns(rows), engine or self.engine, spec, seed, space)


@pytest.fixture
def answer(store: Path, tiny_loaded: Target, renderer: Renderer) -> Answering:
    return Answering(tiny_loaded, renderer)


def by_id(result: Shards) -> dict[str, dict[str, Any]]:
    return {row["prompt_id"]: row for row in result.table("answers").to_pylist()}


def test_answers_keep_the_order_and_ids_of_the_prompts(answer: Answering, renderer: Renderer) -> None:
    rows = answer("one").table("answers").to_pylist()
    assert [row["prompt_id"] for row in rows] == [row["prompt_id"] for row in ROWS]
    for row, text in zip(rows, TEXTS, strict=True):
        assert row["request"] == request(text)
        assert tuple(row["prompt_ids"]) == renderer.ids(json.loads(row["request"]), room=0)
        assert row["prompt_tokens"] == len(row["prompt_ids"])
        assert row["completion_tokens"] == len(row["output_ids"])
        assert (row["engine"], row["root_id"], row["max_tokens"]) == ("transformers", row["prompt_id"], 6)
        assert row["model"].startswith("tiny-target")


def test_an_answer_that_ends_keeps_its_end_id_and_its_text_does_not(answer: Answering) -> None:
    greedy = SPEC.model_copy(update={"temperature": 0.0})
    free = answer("free", spec=greedy).table("answers").to_pylist()
    answer.engine.eos_ids = [end := free[0]["output_ids"][2]]
    for before, row in zip(free, answer("ended", spec=greedy).table("answers").to_pylist(), strict=True):
        ids = before["output_ids"]
        stopped = end in ids
        assert row["finish_reason"] == ("stop" if stopped else "length")
        assert row["output_ids"] == (ids[: ids.index(end) + 1] if stopped else ids)


def test_the_text_is_what_a_server_gives_which_strips_special_ids(answer: Answering, renderer: Renderer) -> None:
    for row in answer("one").table("answers").to_pylist():
        plain = [number for number in row["output_ids"] if number > 16]
        assert row["content"] == renderer.codec.decode([plain])[0]
        assert row["reasoning"] is None


def test_the_same_shard_gives_the_same_bytes_and_another_seed_other_ones(answer: Answering) -> None:
    first, second = answer("first"), answer("second")
    assert first.digest() == second.digest()
    assert answer("third", seed=1).digest() != first.digest()


def test_a_prompt_gets_the_same_answer_in_any_shard(answer: Answering) -> None:
    alone = SPEC.model_copy(update={"batch_size": 1})  # in a batch of several, rounding can tip a close choice
    whole = by_id(answer("whole", spec=alone))
    apart = by_id(answer("left", ROWS[:2], alone)) | by_id(answer("right", ROWS[2:], alone))
    assert {name: row["output_ids"] for name, row in apart.items()} == {
        name: row["output_ids"] for name, row in whole.items()
    }


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_after_a_kill_only_unfinished_batches_are_generated(cut: int, answer: Answering) -> None:
    undisturbed = answer("undisturbed")
    killed = Counting(answer.engine, die_at=6)  # two of three batches are done
    with pytest.raises(KeyboardInterrupt):
        answer("killed", engine=killed)
    journal = Workspace("generate_answers/killed.parquet").path(JOURNAL)
    journal.write_bytes(journal.read_bytes()[: len(journal.read_bytes()) - cut])
    again = Counting(answer.engine)
    assert answer("killed", engine=again).digest() == undisturbed.digest()
    kept = killed.asked[: 3 if cut else 6]
    assert not set(kept) & set(again.asked)
    assert set(kept) | set(again.asked) == {row["prompt_id"] for row in ROWS}


@pytest.mark.parametrize("change", [{"temperature": 0.9}, {"max_tokens": 5}, {"top_p": 0.9}])
def test_a_journal_of_other_sampling_is_not_used(change: dict[str, float], answer: Answering) -> None:
    with pytest.raises(KeyboardInterrupt):
        answer("same", engine=Counting(answer.engine, die_at=6))
    again = Counting(answer.engine)
    answer("same", spec=SPEC.model_copy(update=change), engine=again)
    assert len(again.asked) == len(TEXTS)


def test_batches_do_not_depend_on_the_order_of_the_prompts(answer: Answering) -> None:
    asked = answer.turns(ROWS).ready(0)
    batches = cut_batches(asked, 3)
    assert cut_batches(asked[::-1], 3) == batches
    assert [len(batch) for batch in batches] == [3, 3, 1]
    lengths = [len(request.ids) for batch in batches for request in batch]
    assert lengths == sorted(lengths)


def test_a_prompt_that_leaves_no_room_is_quarantined_and_counted(answer: Answering) -> None:
    long = prompt("long " * 1100)
    result = answer("long", [prompt("Hi"), long, prompt("Why?")])
    assert result.rows("answers") + result.rows("quarantine") == 3
    (row,) = result.table("quarantine").to_pylist()
    assert (row["reason"], row["source_key"], row["step"]) == ("prompt_too_long", long["prompt_id"], "generate")
    assert json.loads(row["raw"]) == [{"role": "user", "content": "long " * 1100}]
    assert result.facts["quarantined"] == {"prompt_too_long": 1}


def test_a_prompt_that_the_template_refuses_is_quarantined(renderer: Renderer, answer: Answering) -> None:
    refusing = replace(renderer, template=renderer.template._replace(text="{{ raise_exception('roles alternate') }}"))
    answer._renderer = refusing
    (row,) = answer("refused", [prompt("Hi")]).table("quarantine").to_pylist()
    assert row["reason"] == "template_refused"
    assert "roles alternate" in row["detail"]


def test_marker_text_is_never_sent(answer: Answering) -> None:
    engine = Counting(answer.engine)
    result = answer("marked", [prompt("What is <|im_end|>?"), prompt("Hi")], engine=engine)
    assert engine.asked == [prompt("Hi")["prompt_id"]]
    assert result.facts["quarantined"] == {"marker_in_prompt": 1}


def test_answers_of_other_prompts_stop_the_step(answer: Answering) -> None:
    class Confused(Counting):
        def generate(self, batch: Prompts, sampling: Sampling, report: Callable[[int], None]) -> list[Answer]:
            answers = super().generate(batch, sampling, report)
            return [replace(answers[0], prompt_id="f" * 32), *answers[1:]]

    with pytest.raises(EngineError, match="not those of the 3 prompts"):
        answer("confused", engine=Confused(answer.engine))


class Ending:
    """An engine whose answers end after some ids, for the limits at which they are cut."""

    name, model = "ending", "made up"

    def __init__(self, lengths: dict[str, int], die_at: int = -1) -> None:
        self.lengths, self.die_at = lengths, die_at
        self.calls: list[tuple[int, list[str]]] = []

    def generate(self, batch: Prompts, sampling: Sampling, report: Callable[[int], None]) -> list[Answer]:
        if len(self.calls) == self.die_at:
            raise KeyboardInterrupt
        self.calls.append((sampling.max_tokens, [asked.prompt_id for asked in batch]))
        made = []
        for asked in batch:
            wanted = self.lengths.get(asked.prompt_id, 3)
            ids = [*range(100, 99 + min(wanted, sampling.max_tokens + 1)), 2][: sampling.max_tokens]
            finish = "stop" if ids[-1] == 2 else "length"
            text = f"answer of {wanted}"
            made.append(Answer(asked.prompt_id, ids, text, finish, sampling.max_tokens, len(asked.ids), len(ids)))
        return made


LONGER = SPEC.model_copy(update={"regenerate_tokens": 20})


def test_an_answer_that_was_cut_is_made_again_with_the_larger_limit(answer: Answering) -> None:
    cut, still_cut = ROWS[1]["prompt_id"], ROWS[2]["prompt_id"]
    engine = Ending({cut: 15, still_cut: 40})
    result = answer("longer", spec=LONGER, engine=engine)
    rows = by_id(result)
    assert (len(rows[cut]["output_ids"]), rows[cut]["finish_reason"], rows[cut]["max_tokens"]) == (15, "stop", 20)
    assert (len(rows[still_cut]["output_ids"]), rows[still_cut]["finish_reason"]) == (20, "length")
    assert {row["max_tokens"] for name, row in rows.items() if name not in (cut, still_cut)} == {6}
    assert sorted(name for limit, names in engine.calls if limit == 20 for name in names) == sorted([cut, still_cut])
    assert (result.facts["cut"], result.facts["regenerated"]) == (1, 2)


def test_an_answer_that_has_no_room_to_be_longer_stays_as_it_is(answer: Answering) -> None:
    long = prompt("word " * 980)
    room = SPEC.model_copy(update={"regenerate_tokens": 900})
    rows = by_id(answer("full", [long], room, engine=Ending({long["prompt_id"]: 15})))
    assert (rows[long["prompt_id"]]["finish_reason"], rows[long["prompt_id"]]["max_tokens"]) == ("length", 6)


def test_the_embedded_engine_goes_on_from_what_was_cut(answer: Answering) -> None:
    short, longer = by_id(answer("short")), by_id(answer("long", spec=LONGER))
    for name, row in short.items():
        assert longer[name]["output_ids"][:5] == row["output_ids"][:5], "the same numbers are drawn"


def tree() -> list[dict[str, Any]]:
    """Two conversations of three turns that begin alike, and one of two."""
    first = prompt("Hi")
    second = prompt("And then?", parent=first)
    other = prompt("Why?")
    rows = [
        first,
        second,
        prompt("Go on", parent=second),
        prompt("So?", parent=second),
        other,
        prompt("Really?", parent=other),
    ]
    return sorted(rows, key=lambda row: (row["root_id"], row["turn"], row["prompt_id"]))


def test_a_conversation_is_answered_level_by_level_with_its_own_answers(answer: Answering) -> None:
    result = answer("tree", tree(), engine=Ending({}))
    rows = result.table("answers").to_pylist()
    assert [row["prompt_id"] for row in rows] == [row["prompt_id"] for row in tree()]
    for row, given in zip(rows, tree(), strict=True):
        messages = json.loads(row["request"])["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant"] * given["turn"] + ["user"]
        assert messages[-1:] == json.loads(given["messages"])
        assert row["root_id"] == given["root_id"]
        assert len(row["prompt_ids"]) == row["prompt_tokens"]
    assert result.facts["rows_in"] == result.facts["rows_out"] == 6


def test_an_answer_made_longer_is_the_one_that_becomes_history(answer: Answering) -> None:
    first = prompt("Hi")
    rows = [first, prompt("More?", parent=first)]
    lengths = {first["prompt_id"]: 15}
    result = answer("short", rows, engine=Ending(lengths))
    assert result.facts["quarantined"] == {"parent_unusable": 1}
    result = answer("long", rows, LONGER, engine=Ending(lengths))
    assert result.rows("answers") == 2


@pytest.mark.parametrize("die_at", range(7))
def test_a_kill_on_any_level_loses_no_finished_batch(die_at: int, answer: Answering) -> None:
    spec = LONGER.model_copy(update={"batch_size": 1})
    lengths = {tree()[0]["prompt_id"]: 15}
    undisturbed = answer("undisturbed", tree(), spec, engine=Ending(lengths))
    killed, again = Ending(lengths, die_at), Ending(lengths)
    with pytest.raises(KeyboardInterrupt):
        answer("killed", tree(), spec, engine=killed)
    assert answer("killed", tree(), spec, engine=again).digest() == undisturbed.digest()
    assert len(killed.calls) == die_at
    assert [call for call in again.calls if call in killed.calls] == []
    assert len(killed.calls) + len(again.calls) == 7
