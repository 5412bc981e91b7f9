"""The rules of the audit: each is one named pandera check with a sentence that says what it asks of a row.

Rules see a frame of figures per sequence, made with NumPy from the ids, never the ids themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import pandera.pandas as pandera
import pyarrow as pa
from pandera.errors import SchemaErrors

from schemas.ragged import Counts, Mask, Ragged
from schemas.sections import AuditSpec

LOOP_TAIL = 48  # ids at the end that must repeat for an answer to count as stuck
LOOP_BLOCK = 16  # longest block that is looked for


@dataclass(frozen=True)
class TargetRules:
    """What the audit needs to know of the target."""

    vocab_size: int
    context: int
    end_ids: tuple[int, ...]
    template_sha256: str

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> TargetRules:
        """From the facts of a prepared target."""
        return cls(facts["vocab_size"], facts["context"], tuple(facts["eos_ids"]), facts["template_sha256"])


@dataclass(frozen=True)
class Rule:
    """One check on one figure.

    A `gate` rule quarantines and counts for the gate; a `policy` rule quarantines what the recipe does not want,
    however much that is; a `warning` only counts.
    """

    name: str
    sentence: str
    figure: str
    passes: Callable[[pd.Series], pd.Series]
    kind: Literal["gate", "policy", "warning"] = "gate"

    def column(self) -> pandera.Column:
        """The rule as a pandera column."""
        return pandera.Column(checks=pandera.Check(self.passes, name=self.name, error=self.sentence), name=self.figure)


def rules_for(spec: AuditSpec) -> list[Rule]:
    """The rules of a recipe, in the order in which the first that fails gives a row its reason."""
    rules = [
        Rule("id_out_of_range", "every id is one of the target's", "ids_outside", _is_zero),
        Rule(
            "other_template", "the prompt was made with the target's present chat template", "other_template", _is_zero
        ),
        Rule(
            "prompt_is_closed", "the prompt ends where the answer begins, not with an end id", "prompt_ends", _is_zero
        ),
        Rule("end_id_inside", "no end id stands before the last id of the answer", "ends_inside", _is_zero),
        Rule("end_id_missing", "an answer that finished by stop ends with an end id", "stopped_without_end", _is_zero),
        Rule("end_id_after_cut", "an answer that was cut has no end id", "cut_with_end", _is_zero),
        Rule("longer_than_context", "prompt and answer fit in the target's context", "ids_past_context", _is_zero),
        Rule("duplicate_prompt", "no earlier row has the same prompt", "seen_before", _is_zero),
        Rule("ends_in_a_loop", "the answer does not end in a loop of a few ids", "loops", _is_zero, "warning"),
    ]
    if spec.on_length == "drop":
        cut = Rule("truncated", "the answer was not cut (audit.on_length: drop)", "cut", _is_zero, "policy")
        rules.insert(-1, cut)
    return rules


def figures(sequences: pa.Table, target: TargetRules, seen: Collection[str]) -> pd.DataFrame:
    """One row of figures per sequence (contract SEQUENCES), each 0 where all is well.

    Args:
        sequences: one shard.
        target: what the target allows.
        seen: the prompt ids of the shards before.
    """
    prompts, completions = Ragged.of(sequences["prompt_ids"]), Ragged.of(sequences["completion_ids"])
    stopped = np.asarray(sequences["finish_reason"].to_pylist(), dtype=object) == "stop"
    other = np.asarray(sequences["template_sha256"].to_pylist(), dtype=object) != target.template_sha256
    ends = np.isin(completions.values, target.end_ids)
    closed = np.isin(completions.last(), target.end_ids)
    length = prompts.lengths + completions.lengths
    columns: dict[str, Mask | Counts] = {
        "ids_outside": _outside(prompts, target.vocab_size) + _outside(completions, target.vocab_size),
        "other_template": other,
        "prompt_ends": np.isin(prompts.last(), target.end_ids),
        "ends_inside": completions.count(ends) - closed,
        "stopped_without_end": stopped & ~closed,
        "cut_with_end": ~stopped & closed,
        "ids_past_context": np.maximum(length - target.context, 0),
        "seen_before": np.asarray([prompt in seen for prompt in sequences["prompt_id"].to_pylist()], dtype=bool),
        "loops": end_in_a_loop(completions),
        "cut": ~stopped,
    }
    return pd.DataFrame({name: values.astype(np.int64) for name, values in columns.items()})


def failures(frame: pd.DataFrame, rules: list[Rule]) -> dict[str, list[int]]:
    """The rows that fail each rule, by the rule's name."""
    failed: dict[str, list[int]] = {rule.name: [] for rule in rules}
    try:
        pandera.DataFrameSchema({rule.figure: rule.column() for rule in rules}).validate(frame, lazy=True)
    except SchemaErrors as exc:
        names = {rule.figure: rule.name for rule in rules}
        for column, row in exc.failure_cases[["column", "index"]].itertuples(index=False):
            failed[names[column]].append(int(row))
    return failed


def end_in_a_loop(completions: Ragged) -> Mask:
    """Which rows' last `LOOP_TAIL` ids are one block of at most `LOOP_BLOCK` ids over and over."""
    enough = completions.lengths >= LOOP_TAIL
    ends = (completions.starts + completions.lengths)[enough]
    tails = completions.values[ends[:, None] + np.arange(-LOOP_TAIL, 0)]  # (long rows, LOOP_TAIL)
    stuck = np.zeros(len(tails), dtype=bool)
    for block in range(1, LOOP_BLOCK + 1):
        stuck |= (tails[:, block:] == tails[:, :-block]).all(axis=1)
    loops = np.zeros(len(enough), dtype=bool)
    loops[enough] = stuck
    return loops


def _outside(ids: Ragged, vocab_size: int) -> Counts:
    return ids.count((ids.values < 0) | (ids.values >= vocab_size))


def _is_zero(figure: pd.Series) -> pd.Series:
    return figure == 0
