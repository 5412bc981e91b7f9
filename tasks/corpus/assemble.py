"""From audited sequences to training rows: a plan made from lengths alone, then the rows gathered in its order.

The order is a hash of seed and sequence, so it does not depend on how the input was sharded. Only one pass's worth of
ids is in memory at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.answers import SEQUENCES
from schemas.corpus import CORPUS
from schemas.errors import ArtifactInvalid, RecipeError
from schemas.prompts import QUARANTINE, quarantine_row
from schemas.ragged import Counts, Ragged
from schemas.sections import CorpusSpec

STEP = "corpus"
MIN_COMPLETION = 2  # a row is served x[t+1] and predicts x[t+2], and both must be completion ids
PASS_IDS = 2**26  # ids held at a time while rows are gathered

Tables = Callable[[], Iterable[pa.Table]]


@dataclass(frozen=True)
class Plan:
    """Where every input row goes. Rows are numbered through all input tables; outputs are in their final order."""

    train: Counts
    heldout: Counts
    too_long: Counts
    too_short: Counts
    lengths: Counts  # (rows,) prompt and completion ids
    completions: Counts  # (rows,) completion ids

    def facts(self) -> dict[str, object]:
        """Counts of rows and ids."""
        dropped = {"too_long": len(self.too_long), "too_short": len(self.too_short)}
        splits = {"train": self.train, "heldout": self.heldout}
        return {
            "rows_in": len(self.lengths),
            "rows_out": len(self.train) + len(self.heldout),
            "quarantined": {reason: count for reason, count in dropped.items() if count},
            "sequences": {split: len(rows) for split, rows in splits.items()},
            "tokens": {split: int(self.lengths[rows].sum()) for split, rows in splits.items()},
            "completion_tokens": {split: int(self.completions[rows].sum()) for split, rows in splits.items()},
        }


def plan_corpus(tables: Iterable[pa.Table], spec: CorpusSpec, seed: int) -> Plan:
    """Decide from ids, datasets and lengths (contract SEQUENCES, streamed) what is trained on, held out, or left.

    Held out are whole conversations, taken evenly from those sorted by dataset and hash, so that datasets are held out
    in proportion and no turn of a conversation that was trained on is.

    Raises:
        RecipeError: no row is left to train on.
    """
    names, roots, datasets, prompts, completions = [], [], [], [], []
    for table in tables:
        names += table["prompt_id"].to_pylist()
        roots += table["root_id"].to_pylist()
        datasets += table["dataset"].to_pylist()
        prompts.append(Ragged.of(table["prompt_ids"]).lengths)
        completions.append(Ragged.of(table["completion_ids"]).lengths)
    completion = np.concatenate([np.zeros(0, np.int64), *completions])
    length = np.concatenate([np.zeros(0, np.int64), *prompts]) + completion
    too_long = length > spec.max_length
    too_short = ~too_long & (completion < MIN_COMPLETION)
    good = np.flatnonzero(~too_long & ~too_short)
    if len(good) <= spec.heldout:
        raise RecipeError(
            f"corpus.heldout is {spec.heldout}, and {len(good)} of {len(length)} sequences can be used "
            f"({too_long.sum()} are longer than corpus.max_length {spec.max_length}, {too_short.sum()} have fewer than "
            f"{MIN_COMPLETION} completion ids), so none is left to train on: lower corpus.heldout or give more prompts"
        )
    places = _shuffled(names, seed)
    heldout = good[_heldout(np.asarray(roots)[good], np.asarray(datasets)[good], spec.heldout, seed)]
    train = np.setdiff1d(good, heldout, assume_unique=True)
    return Plan(
        train=train[np.argsort(places[train])],
        heldout=heldout[np.argsort(places[heldout])],
        too_long=np.flatnonzero(too_long),
        too_short=np.flatnonzero(too_short),
        lengths=length,
        completions=completion,
    )


def corpus_shards(tables: Tables, plan: Plan, split: str, size: int, pass_ids: int = PASS_IDS) -> Iterator[pa.Table]:
    """The shards of one split (contract CORPUS), in order, with at most `size` rows each.

    Args:
        tables: gives the input tables anew for every pass over them.
        plan: from the same tables.
        split: train or heldout.
        size: rows per shard.
        pass_ids: ids that may be in memory; more passes are made when a split has more.
    """
    rows = plan.train if split == "train" else plan.heldout
    shards = [rows[start : start + size] for start in range(0, len(rows), size)]
    for group in _passes(shards, plan.lengths, pass_ids):
        taken = take_rows(tables(), np.concatenate(group))
        start = 0
        for shard in group:
            yield corpus_table(taken.slice(start, len(shard)), split)
            start += len(shard)


def corpus_table(sequences: pa.Table, split: str) -> pa.Table:
    """Sequences as corpus rows: prompt and completion joined, and where the completion begins.

    Raises:
        ArtifactInvalid: a loss mask is not 0 over the prompt and 1 over the completion.
    """
    sequences = sequences.combine_chunks()
    rows = sequences.num_rows
    prompts, completions = (sequences[name].combine_chunks() for name in ("prompt_ids", "completion_ids"))
    pairs = np.stack([np.arange(rows), np.arange(rows) + rows], axis=1).ravel()  # prompt 0, completion 0, prompt 1, ...
    joined = Ragged.of(pa.concat_arrays([prompts, completions]).take(pa.array(pairs)))
    supervised = np.repeat(np.tile([0, 1], rows), joined.lengths)
    if not np.array_equal(Ragged.of(sequences["loss_mask"]).values, supervised):
        raise ArtifactInvalid("a loss mask is not 0 over its prompt and 1 over its completion: audit it again")
    offsets = np.concatenate([[0], np.cumsum(joined.lengths)[1::2]]).astype(np.int32)
    token_type = CORPUS.arrow.field("token_ids").type
    table = pa.table(
        {
            "sequence_id": sequences["prompt_id"],
            "dataset": sequences["dataset"],
            "split": pa.array([split] * rows, pa.string()),
            "token_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(joined.values), type=token_type),
            "prompt_length": pa.array(joined.lengths[::2].astype(np.int32)),
        },
        schema=CORPUS.arrow,
    )
    return CORPUS.check(table, "corpus rows")


def quarantine_table(tables: Tables, plan: Plan, spec: CorpusSpec) -> pa.Table:
    """The rows that are too long or too short (contract QUARANTINE)."""
    quarantined = []
    for reason, rows, rule in (
        ("too_long", plan.too_long, f"corpus.max_length is {spec.max_length}"),
        ("too_short", plan.too_short, f"at least {MIN_COMPLETION} completion ids are needed"),
    ):
        for number, row in zip(rows, take_rows(tables(), rows).to_pylist() if len(rows) else (), strict=True):
            detail = f"{plan.lengths[number]} ids, {plan.completions[number]} of them completion; {rule}"
            raw = json.dumps(row, ensure_ascii=False, sort_keys=True).encode()
            quarantined.append(quarantine_row(STEP, row["dataset"], row["prompt_id"], reason, detail, raw))
    return QUARANTINE.table(quarantined)


def take_rows(tables: Iterable[pa.Table], rows: Counts) -> pa.Table:
    """Rows by their number through all tables, in the order asked for."""
    pieces, found = [SEQUENCES.arrow.empty_table()], []
    first = 0
    ordered = np.sort(rows)
    for table in tables:
        here = ordered[np.searchsorted(ordered, first) : np.searchsorted(ordered, first + table.num_rows)]
        if len(here):
            pieces.append(table.take(pa.array(here - first)))
            found.append(here)
        first += table.num_rows
    wanted = np.searchsorted(np.concatenate([np.zeros(0, np.int64), *found]), rows)
    return pa.concat_tables(pieces).take(pa.array(wanted))


def _shuffled(names: list[str], seed: int) -> Counts:
    """The place of each row in the shuffled order."""
    digests = b"".join(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:8] for name in names)
    order = np.lexsort((np.asarray(names, dtype=str), np.frombuffer(digests, np.dtype(">u8"))))
    places = np.empty(len(names), np.int64)
    places[order] = np.arange(len(names))
    return places


def _heldout(roots: np.ndarray, datasets: np.ndarray, count: int, seed: int) -> Counts:
    """Rows of about `count` rows' worth of whole conversations: exactly as many where each has one row."""
    by_root = np.lexsort((datasets, roots))
    names, first, sizes = np.unique(roots[by_root], return_index=True, return_counts=True)
    if len(names) < 2:
        raise RecipeError(
            f"all {len(roots)} sequences that can be used are turns of one conversation, and a conversation is never "
            "both trained on and held out: give more prompts"
        )
    order = np.lexsort((_shuffled(names.tolist(), seed), datasets[by_root][first]))
    taken: list[int] = []
    rows = passed = 0
    for conversation, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        passed += size
        # Taken if what is held out up to its middle is then no more than the share wanted there: never the first one.
        if (2 * rows + size) * len(roots) <= count * (2 * passed - size):
            taken.append(conversation)
            rows += size
    if not taken:
        taken = [int(order[np.argmin(sizes[order])])]
    return np.flatnonzero(np.isin(roots, names[taken]))


def _passes(shards: list[Counts], lengths: Counts, pass_ids: int) -> Iterator[list[Counts]]:
    group: list[Counts] = []
    held = 0
    for shard in shards:
        ids = int(lengths[shard].sum())
        if group and held + ids > pass_ids:
            yield group
            group, held = [], 0
        group.append(shard)
        held += ids
    if group:
        yield group
