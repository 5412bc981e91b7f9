"""The tasks that make the training corpus and the draft vocabulary."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import safe_open

from schemas.corpus import CORPUS, CORPUS_SPLITS, COVERAGE, VOCABULARY
from schemas.prompts import QUARANTINE
from schemas.sections import CorpusSpec, VocabularySpec
from tasks.artifacts.artifact import Shards
from tasks.artifacts.task import artifact_task, workspace
from tasks.corpus.assemble import STEP, corpus_shards, plan_corpus, quarantine_table
from tasks.corpus.vocabulary import (
    CompletionCounts,
    choose_vocabulary,
    count_completions,
    coverage,
    forced_ids,
    vocabulary_table,
)

_log = logging.getLogger(f"eyas.{STEP}")


@artifact_task(version="2")
def build_corpus(audited: Shards, spec: CorpusSpec, seed: int) -> Shards:
    """One row per answer, shuffled: parts `corpus` (files train-00000.parquet … heldout-00000.parquet …), `quarantine`.

    Args:
        audited: part `sequences`.
        spec: longest sequence, how many are held out, rows per shard.
        seed: of the shuffle.

    Raises:
        RecipeError: no sequence is left to train on.
    """
    tables = partial(audited.tables, "sequences")
    plan = plan_corpus(tables(), spec, seed)
    out = workspace()
    for split in CORPUS_SPLITS:
        for number, table in enumerate(corpus_shards(tables, plan, split, spec.shard_sequences)):
            out.add_table("corpus", f"{split}-{number:05d}.parquet", table, CORPUS)
    out.add_table("quarantine", "quarantine.parquet", quarantine_table(tables, plan, spec), QUARANTINE)
    facts = plan.facts()
    _log.info("%s sequences, %s ids; quarantined: %s", facts["sequences"], facts["tokens"], facts["quarantined"] or 0)
    return out.publish(facts=facts)


@artifact_task(version="2")
def build_vocabulary(target: Shards, corpus: Shards, spec: VocabularySpec) -> Shards:
    """The draft vocabulary and how much of the completions it covers: parts `vocabulary` and `coverage`.

    Args:
        target: the prepared target, for its vocabulary, control ids and the markers of its answers.
        corpus: part `corpus`; only its train split is counted for the choice.
        spec: size and prior.

    Raises:
        RecipeError: the size does not fit the target or the ids that must be in.
    """
    counts = count_completions(corpus.tables("corpus"), target.facts["vocab_size"])
    special_ids = np.asarray(target.facts["special_ids"], dtype=np.int32)
    reply_ids = {*target.facts["eos_ids"], *target.facts["reply_ids"]}
    table = choose_vocabulary(counts.split("train"), spec, reply_ids, special_ids)
    return _publish(table, counts)


@artifact_task(version="1")
def adopt_vocabulary(target: Shards, corpus: Shards, parent: Shards) -> Shards:
    """A parent draft's vocabulary with its coverage of this corpus, as `build_vocabulary` gives it.

    Args:
        target: the prepared target, for the markers of its answers.
        corpus: part `corpus`.
        parent: a draft with part "weights", whose mapping is taken as it is.
    """
    counts = count_completions(corpus.tables("corpus"), target.facts["vocab_size"])
    with safe_open(parent.file("weights"), "numpy") as file:
        offsets = file.get_tensor("d2t")
    ids = offsets + np.arange(len(offsets))
    special_ids = np.asarray(target.facts["special_ids"], dtype=np.int32)
    reply_ids = {*target.facts["eos_ids"], *target.facts["reply_ids"]}
    forced = forced_ids(counts.split("train"), reply_ids, special_ids[special_ids < counts.vocab_size])
    if len(missing := np.setdiff1d(forced, ids)):
        _log.warning("the parent's vocabulary lacks the control ids %s, which it can never propose", missing.tolist())
    return _publish(vocabulary_table(ids, counts.split("train"), forced), counts)


@artifact_task(version="1")
def sample_sequences(corpus: Shards, count: int) -> Shards:
    """At most `count` training sequences, evenly spread: part `corpus` with one file, to try something out on."""
    tables = [table.filter(pc.field("split") == "train") for table in corpus.tables("corpus")]
    whole = pa.concat_tables(tables)
    places = np.unique(np.linspace(0, whole.num_rows - 1, min(count, whole.num_rows)).round().astype(int))
    out = workspace()
    out.add_table("corpus", "sample-00000.parquet", whole.take(pa.array(places)), CORPUS)
    return out.publish({"sequences": len(places)})


def _publish(table: pa.Table, counts: CompletionCounts) -> Shards:
    covered = coverage(counts, table)
    out = workspace()
    out.add_table("vocabulary", "vocabulary.parquet", table, VOCABULARY)
    out.add_table("coverage", "coverage.parquet", covered, COVERAGE)
    size = table.num_rows
    figures: dict[str, dict[str, int]] = {}
    for split in CORPUS_SPLITS:
        rows = [row for row in covered.to_pylist() if row["split"] == split]
        figures[split] = {name: sum(row[name] for row in rows) for name in ("tokens", "covered")}
        _log.info("draft vocabulary of %d covers %d of %d %s ids", size, *reversed(figures[split].values()), split)
    facts = {"size": size, "forced": int(np.count_nonzero(table["forced"].to_numpy())), "coverage": figures}
    return out.publish(facts=facts)
