"""The draft vocabulary has its size and every id that must be in, and covers held-out text better with the prior."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from schemas.corpus import CORPUS
from schemas.errors import RecipeError
from schemas.ragged import Counts
from schemas.sections import VocabularySpec
from tasks.artifacts.workspace import Workspace
from tasks.corpus.task import adopt_vocabulary, build_vocabulary, sample_sequences
from tasks.corpus.vocabulary import choose_vocabulary, count_completions, coverage
from tests.rows import ALSO_END, END, TARGET, VOCAB, prompt_id, run_body, stored

SPECIAL = np.array(TARGET.facts["special_ids"], np.int32)
ENDS = TARGET.facts["eos_ids"]


def corpus(*rows: tuple[str, str, list[int], list[int]]) -> pa.Table:
    """Rows of dataset, split, prompt ids and completion ids."""
    return CORPUS.table(
        {
            "sequence_id": prompt_id(number),
            "dataset": dataset,
            "split": split,
            "token_ids": prompt + completion,
            "prompt_length": len(prompt),
        }
        for number, (dataset, split, prompt, completion) in enumerate(rows)
    )


def counts_of(said: dict[int, int]) -> Counts:
    counts = np.zeros(VOCAB, np.int64)
    for number, count in said.items():
        counts[number] = count
    return counts


def chosen(said: dict[int, int], size: int = 8, prior: float = 0.0) -> list[int]:
    spec = VocabularySpec(size=size, prior=prior)
    return choose_vocabulary(counts_of(said), spec, ENDS, SPECIAL)["target_id"].to_pylist()


def test_only_completions_are_counted_by_dataset_and_split():
    tables = [
        corpus(("chat", "train", [7, 8], [9, 9]), ("code", "train", [8], [8, 10])),
        corpus(("chat", "heldout", [9], [11, 12]), ("chat", "train", [1], [9, 7])),
    ]
    counts = count_completions(tables, VOCAB)
    assert {key: np.flatnonzero(value).tolist() for key, value in counts.of.items()} == {
        ("chat", "train"): [7, 9],
        ("code", "train"): [8, 10],
        ("chat", "heldout"): [11, 12],
    }
    assert counts.split("train")[9] == 3
    assert counts.split("heldout").sum() == 2


def test_the_most_said_ids_are_in_and_ascend():
    said = {number: number for number in range(100, 120)}
    assert chosen(said) == [END, ALSO_END, 114, 115, 116, 117, 118, 119]


def test_control_ids_are_in_when_they_were_said_and_end_ids_always():
    said = dict.fromkeys(range(100, 120), 50) | {4: 1}
    table = choose_vocabulary(counts_of(said), VocabularySpec(size=8, prior=0.3), ENDS, SPECIAL)
    forced = [row["target_id"] for row in table.to_pylist() if row["forced"]]
    assert forced == [END, ALSO_END, 4]
    assert table["target_id"].to_pylist()[:3] == forced


def test_the_markers_of_an_answer_are_in_though_never_said():
    counts = counts_of(dict.fromkeys(range(100, 120), 50))
    table = choose_vocabulary(counts, VocabularySpec(size=8, prior=0.3), [*ENDS, 390], SPECIAL)
    assert [row["target_id"] for row in table.to_pylist() if row["forced"]] == [END, ALSO_END, 390]


def test_a_control_id_that_was_never_said_gets_no_prior():
    assert not {0, 1, 4} & set(chosen({300: 100}, size=50, prior=0.3))


def test_the_prior_prefers_low_ids_but_not_over_what_is_said_often():
    said = dict.fromkeys(range(200, 206), 50)
    assert chosen(said, size=12, prior=0.3) == [END, ALSO_END, 5, 6, 7, 8, *range(200, 206)]


def test_of_equal_scores_the_lower_id_wins():
    assert chosen(dict.fromkeys(range(100, 150), 3)) == [END, ALSO_END, *range(100, 106)]


def test_a_vocabulary_larger_than_the_targets_is_an_error_that_names_the_field():
    with pytest.raises(RecipeError, match=r"vocabulary\.size is 401, the target has 400 tokens; use at most 400"):
        chosen({}, size=VOCAB + 1)


def test_a_vocabulary_too_small_for_the_control_ids_is_an_error_that_names_the_field():
    special = np.arange(20, dtype=np.int32)
    with pytest.raises(RecipeError, match=r"vocabulary\.size is 8, and 20 control ids must be in it"):
        choose_vocabulary(np.ones(VOCAB, np.int64), VocabularySpec(size=8), ENDS, special)


def test_the_whole_target_vocabulary_can_be_taken():
    assert chosen({7: 1}, size=VOCAB, prior=0.3) == list(range(VOCAB))


@given(
    said=st.dictionaries(st.integers(0, VOCAB - 1), st.integers(1, 1000), max_size=60),
    size=st.integers(8, VOCAB),
    prior=st.sampled_from([0.0, 0.3, 5.0]),
)
def test_any_counts_give_exactly_size_ids_with_the_forced_ones(said: dict[int, int], size: int, prior: float):
    counts = counts_of(said)
    table = choose_vocabulary(counts, VocabularySpec(size=size, prior=prior), ENDS, SPECIAL)
    ids = table["target_id"].to_pylist()
    assert len(ids) == size
    assert ids == sorted(set(ids))
    assert {END, ALSO_END} | {number for number in SPECIAL.tolist() if number in said} <= set(ids)
    assert table["count"].to_pylist() == counts[ids].tolist()
    if prior == 0:
        left = np.delete(counts, ids)
        kept = [row["count"] for row in table.to_pylist() if not row["forced"]]
        assert not kept or left.size == 0 or min(kept) >= left.max()


def test_coverage_counts_what_is_inside_per_dataset_and_split():
    table = corpus(("chat", "train", [1], [9, 9]), ("chat", "heldout", [1], [9, 300]), ("code", "train", [1], [301, 9]))
    counts = count_completions([table], VOCAB)
    vocabulary = choose_vocabulary(counts_of({9: 1}), VocabularySpec(size=8, prior=0.3), ENDS, SPECIAL)
    assert [tuple(row.values()) for row in coverage(counts, vocabulary).to_pylist()] == [
        ("chat", "train", 2, 2),
        ("chat", "heldout", 2, 1),
        ("code", "train", 2, 1),
    ]


def ranked_text(seed: int, tokens: int, vocab: int) -> list[int]:
    """Ids drawn like a language's: ranks fall as a power, with a topic of its own in every text."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / (np.arange(vocab) + 20)
    topic = generator.integers(5, vocab, size=vocab // 200)
    weights[topic] += weights[300]
    return generator.choice(vocab, size=tokens, p=weights / weights.sum()).tolist()


def test_the_prior_raises_coverage_of_held_out_text():
    vocab = 20_000
    train = [("chat", "train", [1], ranked_text(seed, 1000, vocab)) for seed in range(40)]
    heldout = [("chat", "heldout", [1], ranked_text(seed, 1000, vocab)) for seed in range(40, 60)]
    counts = count_completions([corpus(*train, *heldout)], vocab)

    def covered(prior: float) -> int:
        spec = VocabularySpec(size=4000, prior=prior)
        return coverage(counts, choose_vocabulary(counts.split("train"), spec, ENDS, SPECIAL))["covered"][1].as_py()

    assert covered(0.3) > covered(0.0)


def test_the_task_counts_the_train_split_only(store: Path):
    given_corpus: list[Any] = [
        corpus(("chat", "train", [1], [200, 201, END])),
        corpus(("chat", "heldout", [1], [*range(300, 320)])),
    ]
    artifact = stored("given", "corpus", CORPUS, given_corpus)
    target = TARGET.model_copy(update={"facts": TARGET.facts | {"reply_ids": [END, ALSO_END, 350]}})
    found = run_body(build_vocabulary, target, artifact, VocabularySpec(size=8, prior=0.3))
    ids = found.table("vocabulary")["target_id"].to_pylist()
    assert {200, 201, END, ALSO_END, 350} <= set(ids)
    assert not set(range(300, 320)) & set(ids)
    assert found.facts == {
        "size": 8,
        "forced": 3,
        "coverage": {"train": {"tokens": 3, "covered": 3}, "heldout": {"tokens": 20, "covered": 0}},
    }
    assert found.rows("coverage") == 2


def test_the_smallest_size_with_the_coverage_is_chosen():
    vocab = 2000
    counts = np.zeros(vocab, np.int64)
    counts[500:1500] = 10
    found = {
        share: choose_vocabulary(counts, VocabularySpec(size=1900, prior=0, coverage=share), ENDS, SPECIAL)
        for share in (0.1, 0.5, 0.95)
    }
    for share, table in found.items():
        size = table.num_rows
        assert size % 128 == 0
        assert table["count"].to_numpy().sum() >= share * counts.sum()
        assert size - 128 < share * 1000 + len(ENDS) + 1  # 128 fewer would not do
    assert found[0.1].num_rows < found[0.5].num_rows < found[0.95].num_rows


def test_a_coverage_that_the_size_cannot_reach_is_an_error_with_what_it_reaches():
    counts = np.full(2000, 10, np.int64)
    with pytest.raises(RecipeError, match=r"coverage is 0\.9, and 18\d\d tokens.*size 1000 covers 0\.5000"):
        choose_vocabulary(counts, VocabularySpec(size=1000, prior=0, coverage=0.9), ENDS, SPECIAL)


def test_a_parents_vocabulary_is_taken_as_it_is(store: Path, caplog: pytest.LogCaptureFixture):
    ids = np.array([9, 2, 300, 7], np.int64)  # no order of their own
    folder = Workspace("adopt_parent/given.parquet")
    save_file({"d2t": ids - np.arange(4)}, folder.path("model.safetensors"))
    folder.add_file("weights", "model.safetensors")
    given_corpus = stored("given", "corpus", CORPUS, [corpus(("chat", "train", [1], [9, 9, 300, 8, END]))])
    with caplog.at_level("WARNING", "eyas.corpus"):
        found = run_body(adopt_vocabulary, TARGET, given_corpus, folder.publish())
    assert found.table("vocabulary")["target_id"].to_pylist() == ids.tolist()
    assert found.table("vocabulary")["count"].to_pylist() == [2, 1, 1, 0]
    assert found.table("coverage").to_pylist() == [{"dataset": "chat", "split": "train", "tokens": 5, "covered": 4}]
    assert f"lacks the control ids [{ALSO_END}]" in caplog.text


def test_a_sample_is_spread_over_the_training_sequences(store: Path):
    rows = [("chat", "heldout" if number % 3 == 2 else "train", [1], [number + 10]) for number in range(30)]
    given_corpus = stored("given", "corpus", CORPUS, [corpus(*rows)[:10], corpus(*rows)[10:]])
    found = next(run_body(sample_sequences, given_corpus, 5).tables("corpus"))
    assert found.num_rows == 5
    assert set(found["split"].to_pylist()) == {"train"}
    firsts = [ids[1] - 10 for ids in found["token_ids"].to_pylist()]
    assert (firsts[0], firsts[-1]) == (0, 28)
    assert run_body(sample_sequences, given_corpus, 500, name="all").facts == {"sequences": 20}
