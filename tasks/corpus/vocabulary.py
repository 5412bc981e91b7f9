"""The draft vocabulary: the target ids that a draft can propose, chosen from what the target says in training.

Coverage is reported for held-out rows too, since that of the training rows is too good to be believed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from schemas.corpus import CORPUS_SPLITS, COVERAGE, VOCABULARY
from schemas.errors import RecipeError
from schemas.ragged import Counts, Ids, Mask, Ragged
from schemas.sections import VocabularySpec

_SIZE_STEP = 128  # of a chosen size: matrices whose rows are a multiple of it are fast everywhere
_PRIOR_OFFSET = 300  # ids of a byte-pair vocabulary are ranks; use falls about as 1 / (rank + 300)


@dataclass
class CompletionCounts:
    """How often each id stands in the completions, per split and dataset."""

    vocab_size: int
    of: dict[tuple[str, str], Counts] = field(default_factory=dict)  # (dataset, split): (vocabulary,)

    def add(self, corpus: pa.Table) -> None:
        """Count one shard (contract CORPUS)."""
        tokens = Ragged.of(corpus["token_ids"])
        prompt_lengths = corpus["prompt_length"].to_numpy()
        answered = tokens.positions() >= np.repeat(prompt_lengths, tokens.lengths)
        keys = list(zip(corpus["dataset"].to_pylist(), corpus["split"].to_pylist(), strict=True))
        rows = defaultdict(list)
        for row, key in enumerate(keys):
            rows[key].append(row)
        for key, members in rows.items():
            belongs = np.zeros(len(keys), dtype=bool)
            belongs[members] = True
            ids = tokens.values[answered & np.repeat(belongs, tokens.lengths)]
            known = self.of.get(key, np.zeros(self.vocab_size, np.int64))
            self.of[key] = known + np.bincount(ids, minlength=self.vocab_size)

    def split(self, name: str) -> Counts:
        """The counts of one split over all datasets."""
        return sum((counts for (_, split), counts in self.of.items() if split == name), np.zeros(self.vocab_size, int))


def count_completions(tables: Iterable[pa.Table], vocab_size: int) -> CompletionCounts:
    """Count the completion ids of a corpus, one shard at a time."""
    counts = CompletionCounts(vocab_size)
    for table in tables:
        counts.add(table)
    return counts


def choose_vocabulary(counts: Counts, spec: VocabularySpec, reply_ids: Collection[int], special_ids: Ids) -> pa.Table:
    """Exactly `spec.size` target ids, or the fewest with `spec.coverage`, in ascending order (contract VOCABULARY).

    Always in are the markers of an answer and every control id that the completions have. The others are those with the
    highest score: the count, plus what the id would get if `prior` times as many ids again were spread by
    1 / (id + 300).

    Args:
        counts: (vocabulary,) times that each id stands in the training completions.
        spec: size and prior.
        reply_ids: ids that end a turn, and the token format's other markers of an answer.
        special_ids: all control ids; those never said get no prior.

    Raises:
        RecipeError: the size does not fit the target or the ids that must be in.
    """
    vocab_size = len(counts)
    special_ids = special_ids[special_ids < vocab_size]  # a tokenizer can have more ids than the model
    forced = forced_ids(counts, reply_ids, special_ids)
    if spec.size > vocab_size:
        raise RecipeError(
            f"vocabulary.size is {spec.size}, the target has {vocab_size} tokens; use at most {vocab_size}"
        )
    if len(forced) > spec.size:
        raise RecipeError(f"vocabulary.size is {spec.size}, and {len(forced)} control ids must be in it; use more")
    prior = 1.0 / (np.arange(vocab_size) + _PRIOR_OFFSET)
    prior[special_ids] = 0.0
    weight = spec.prior * counts.sum() / max(prior.sum(), np.finfo(float).tiny)
    score = counts + weight * prior
    score[forced] = np.inf
    best_first = np.argsort(-score, kind="stable")  # stable, so that of equal scores the lower id wins
    size = smallest_size(counts[best_first], spec, len(forced)) if spec.coverage else spec.size
    return vocabulary_table(np.sort(best_first[:size]).astype(np.int32), counts, forced)


def smallest_size(counts: Counts, spec: VocabularySpec, forced: int) -> int:
    """The fewest ids, in steps of 128, whose counts are `spec.coverage` of all.

    Args:
        counts: of all ids, the first chosen ones first.
        spec: coverage, and the largest size.
        forced: ids that must be in.

    Raises:
        RecipeError: the largest size covers less.
    """
    reached = np.cumsum(counts) / max(counts.sum(), 1)
    needed = int(np.searchsorted(reached, spec.coverage)) + 1
    size = -(-max(needed, forced) // _SIZE_STEP) * _SIZE_STEP
    if needed > spec.size:
        raise RecipeError(
            f"vocabulary.coverage is {spec.coverage}, and {needed} tokens would reach it; vocabulary.size {spec.size} "
            f"covers {reached[spec.size - 1]:.4f} of the training completions: raise the one or lower the other"
        )
    return min(size, spec.size)


def vocabulary_table(ids: Ids, counts: Counts, forced: Ids) -> pa.Table:
    """VOCABULARY of these target ids, in the order of their draft ids."""
    table = pa.table(
        {
            "draft_id": pa.array(np.arange(len(ids), dtype=np.int32)),
            "target_id": pa.array(ids.astype(np.int32)),
            "count": pa.array(counts[ids]),
            "forced": pa.array(np.isin(ids, forced)),
        },
        schema=VOCABULARY.arrow,
    )
    return VOCABULARY.check(table, "draft vocabulary")


def forced_ids(counts: Counts, reply_ids: Collection[int], special_ids: Ids) -> Ids:
    """The markers of an answer, and control ids that were said."""
    said = special_ids[counts[special_ids] > 0]
    return np.union1d(np.asarray(sorted(reply_ids), dtype=np.int32), said.astype(np.int32))


def coverage(counts: CompletionCounts, vocabulary: pa.Table) -> pa.Table:
    """How many completion ids the vocabulary covers, per dataset and split (contract COVERAGE)."""
    inside: Mask = np.zeros(counts.vocab_size, dtype=bool)
    inside[vocabulary["target_id"].to_numpy()] = True
    order = sorted(counts.of, key=lambda key: (key[0], CORPUS_SPLITS.index(key[1])))
    return COVERAGE.table(
        {
            "dataset": dataset,
            "split": split,
            "tokens": int(counts.of[dataset, split].sum()),
            "covered": int(counts.of[dataset, split][inside].sum()),
        }
        for dataset, split in order
    )
