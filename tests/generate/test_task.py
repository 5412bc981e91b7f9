"""A shard of prompts becomes answers: the same every time, none generated twice, every row accounted for."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.errors import EngineError
from schemas.prompts import PROMPTS
from schemas.sections import GenerationSpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.workspace import Workspace
from tasks.generate.embedded import EmbeddedEngine
from tasks.generate.engine import Answer, Sampling
from tasks.generate.task import JOURNAL, answer_shard
from tasks.target.model import Target
from tasks.target.rendering import RenderedPrompt, RenderedShard, cut_batches, render_shard

SPEC = GenerationSpec(max_tokens=6, batch_size=3)
TEXTS = ["Hi", "What is a comet?", "Count to ten.", "Why?", "Name a river in Peru, and one in Chad.", "Go on", "So?"]


Prompts = Sequence[RenderedPrompt]


class Counting:
    """An engine that notes which prompts it was asked for, and can be told to die."""

    def __init__(self, engine: EmbeddedEngine, die_at: int = -1) -> None:
        self.name, self.engine, self.die_at = engine.name, engine, die_at
        self.asked: list[str] = []

    def generate(self, batch: Prompts, sampling: Sampling, report: Callable[[int], None]) -> list[Answer]:
        if self.die_at == len(self.asked):
            raise KeyboardInterrupt
        self.asked += [request.prompt_id for request in batch]
        return self.engine.generate(batch, sampling, report)


def prompts(texts: Sequence[str]) -> pa.Table:
    return PROMPTS.table(
        {
            "prompt_id": f"{number:032x}",
            "dataset": "chat",
            "source_key": str(number),
            "split": "train",
            "messages": json.dumps([{"role": "user", "content": text}]),
        }
        for number, text in enumerate(texts)
    )


@pytest.fixture(scope="module")
def engine(tiny_loaded: Target) -> EmbeddedEngine:
    return EmbeddedEngine(tiny_loaded)


@pytest.fixture(scope="module")
def shard(tiny_loaded: Target) -> RenderedShard:
    return render_shard(prompts(TEXTS), tiny_loaded.tokenizer, tiny_loaded.facts, SPEC.max_tokens, "generate")


def answer(shard: RenderedShard, engine: object, name: str, spec: GenerationSpec = SPEC, seed: int = 0) -> Shards:
    return answer_shard(shard, engine, spec, seed, Workspace(f"generate_answers/{name}.parquet"))  # type: ignore[arg-type]


def test_answers_keep_the_order_and_ids_of_the_prompts(
    store: Path, engine: EmbeddedEngine, shard: RenderedShard
) -> None:
    rows = answer(shard, engine, "one").table("answers").to_pylist()
    assert [row["prompt_id"] for row in rows] == [f"{number:032x}" for number in range(len(TEXTS))]
    for row, request in zip(rows, shard.prompts, strict=True):
        assert row["prompt_ids"] == list(request.ids)
        assert row["prompt_tokens"] == len(request.ids)
        assert row["completion_tokens"] == len(row["output_ids"])
        assert row["engine"] == "transformers"


def test_an_answer_that_ends_keeps_its_end_id(store: Path, tiny_loaded: Target, shard: RenderedShard) -> None:
    engine = EmbeddedEngine(tiny_loaded)
    greedy = SPEC.model_copy(update={"temperature": 0.0})
    free = answer(shard, engine, "free", greedy).table("answers").to_pylist()
    end = free[0]["output_ids"][2]
    engine.eos_ids = [end]
    for before, row in zip(free, answer(shard, engine, "ended", greedy).table("answers").to_pylist(), strict=True):
        ids = before["output_ids"]
        stopped = end in ids
        assert row["finish_reason"] == ("stop" if stopped else "length")
        assert row["output_ids"] == (ids[: ids.index(end) + 1] if stopped else ids)


def test_the_same_shard_gives_the_same_bytes_and_another_seed_other_ones(
    store: Path, engine: EmbeddedEngine, shard: RenderedShard
) -> None:
    first, second = answer(shard, engine, "first"), answer(shard, engine, "second")
    assert first.digest() == second.digest()
    assert answer(shard, engine, "third", seed=1).digest() != first.digest()


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_after_a_kill_only_unfinished_batches_are_generated(
    store: Path, engine: EmbeddedEngine, shard: RenderedShard, cut: int
) -> None:
    undisturbed = answer(shard, engine, "undisturbed")
    killed = Counting(engine, die_at=6)  # two of three batches are done
    with pytest.raises(KeyboardInterrupt):
        answer(shard, killed, "killed")
    journal = Workspace("generate_answers/killed.parquet").path(JOURNAL)
    journal.write_bytes(journal.read_bytes()[: len(journal.read_bytes()) - cut])
    again = Counting(engine)
    assert answer(shard, again, "killed").digest() == undisturbed.digest()
    kept = killed.asked[: 3 if cut else 6]
    assert not set(kept) & set(again.asked)
    assert set(kept) | set(again.asked) == {request.prompt_id for request in shard.prompts}


@pytest.mark.parametrize("change", [{"temperature": 0.9}, {"max_tokens": 5}, {"top_p": 0.9}])
def test_a_journal_of_other_sampling_is_not_used(
    store: Path, engine: EmbeddedEngine, shard: RenderedShard, change: dict[str, float]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        answer(shard, Counting(engine, die_at=6), "same")
    again = Counting(engine)
    answer(shard, again, "same", SPEC.model_copy(update=change))
    assert len(again.asked) == len(TEXTS)


def test_batches_do_not_depend_on_the_order_of_the_prompts(shard: RenderedShard) -> None:
    batches = cut_batches(shard.prompts, 3)
    assert cut_batches(shard.prompts[::-1], 3) == batches
    assert [len(batch) for batch in batches] == [3, 3, 1]
    lengths = [len(request.ids) for batch in batches for request in batch]
    assert lengths == sorted(lengths)


def test_a_prompt_that_leaves_no_room_is_quarantined_and_counted(
    store: Path, tiny_loaded: Target, engine: EmbeddedEngine
) -> None:
    table = prompts(["Hi", "long " * 1100, "Why?"])
    shard = render_shard(table, tiny_loaded.tokenizer, tiny_loaded.facts, SPEC.max_tokens, "generate")
    result = answer(shard, engine, "long")
    assert result.rows("answers") + result.rows("quarantine") == 3
    (row,) = result.table("quarantine").to_pylist()
    assert (row["reason"], row["source_key"], row["step"]) == ("prompt_too_long", f"{1:032x}", "generate")
    assert json.loads(row["raw"]) == [{"role": "user", "content": "long " * 1100}]


def test_a_prompt_that_the_template_refuses_is_quarantined(tiny_loaded: Target) -> None:
    class Refusing:
        def apply_chat_template(self, messages: object, **options: object) -> str:
            raise ValueError("roles must alternate")

    shard = render_shard(prompts(["Hi"]), Refusing(), tiny_loaded.facts, 6, "generate")
    assert [(row["reason"], "roles must alternate" in row["detail"]) for row in shard.quarantine] == [
        ("template_refused", True)
    ]


def test_answers_of_other_prompts_stop_the_step(store: Path, engine: EmbeddedEngine, shard: RenderedShard) -> None:
    class Confused(Counting):
        def generate(self, batch: Prompts, sampling: Sampling, report: Callable[[int], None]) -> list[Answer]:
            answers = super().generate(batch, sampling, report)
            return [replace(answers[0], prompt_id="f" * 32), *answers[1:]]

    with pytest.raises(EngineError, match="not those of the 3 prompts"):
        answer(shard, Confused(engine), "confused")
