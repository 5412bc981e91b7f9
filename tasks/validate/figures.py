"""From a shard of sequences to the figures that the rules look at, made with NumPy from the ids: 0 where all is well.

What needs texts is in texts.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.answers import NATURAL_STOPS
from schemas.ragged import Counts, Mask, Ragged
from schemas.sections import AuditSpec
from tasks.formats.codec import Codec
from tasks.formats.format import TokenFormat
from tasks.overlap import BenchmarkIndex
from tasks.validate.rules import STRUCTURE

LOOP_TAIL = 48  # ids at the end that must repeat for an answer to count as stuck
LOOP_BLOCK = 16  # longest block that is looked for


@dataclass(frozen=True)
class Known:
    """What the audit knows of the target and the benchmarks; rules that need what is None are not checked."""

    vocab_size: int | None = None
    context: int | None = None
    template_sha256: str | None = None
    codec: Codec | None = None
    form: TokenFormat | None = None
    benchmark: BenchmarkIndex | None = None

    @classmethod
    def of(
        cls, facts: Mapping[str, Any], codec: Codec, form: TokenFormat, benchmark: BenchmarkIndex | None = None
    ) -> Known:
        """From the facts of a prepared target; a model may have rows for more ids than its tokenizer knows."""
        vocab_size = min(facts["vocab_size"], codec.vocab_size)
        return cls(vocab_size, facts["context"], facts["template_sha256"], codec, form, benchmark)

    def has(self, need: str | None) -> bool:
        """Whether a rule that needs this can be checked."""
        have = {
            "vocabulary": self.vocab_size,
            "context": self.context,
            "template": self.template_sha256,
            "tokenizer": self.codec,
            "format": self.form,
            "benchmark": self.benchmark,
        }
        return need is None or have[need] is not None


@dataclass
class Figures:
    """A figure per sequence and rule; and what a person wants to know of a row that fails."""

    rows: int
    columns: dict[str, Counts] = field(default_factory=dict)
    details: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, rule: str, values: Mask | Counts) -> None:
        """Set the figures of a rule."""
        self.columns[rule] = np.asarray(values).astype(np.int64)

    def mark(self, rule: str, row: int, detail: str = "") -> None:
        """Let a row fail a rule."""
        if rule not in self.columns:
            self.columns[rule] = np.zeros(self.rows, dtype=np.int64)
        self.columns[rule][row] = 1
        if detail:
            self.details[rule, row] = detail


def figures(sequences: pa.Table, known: Known, spec: AuditSpec, seen: Collection[bytes] = ()) -> Figures:
    """The figures of a shard (contract SEQUENCES) that come from its ids and its scalar columns.

    Args:
        sequences: one shard.
        known: what the target allows.
        spec: the recipe's lists of providers, models and quantizations.
        seen: the prompts of the shards before, as `prompt_key` writes them.
    """
    prompts, completions = Ragged.of(sequences["prompt_ids"]), Ragged.of(sequences["completion_ids"])
    finish = _texts(sequences, "finish_reason")
    stopped = np.isin(finish, NATURAL_STOPS)
    limit = _numbers(sequences, "max_tokens")
    found = Figures(sequences.num_rows)
    if known.vocab_size is not None:
        outside = _outside(prompts, known.vocab_size) + _outside(completions, known.vocab_size)
        found.add("id_out_of_range", outside)
    if known.template_sha256 is not None:
        found.add("other_template", _texts(sequences, "template_sha256") != known.template_sha256)
    if known.form is not None:
        ended = np.isin(completions.last(), known.form.end_ids)
        found.add("prompt_is_closed", np.isin(prompts.last(), known.form.end_ids))
        found.add("stopped_at_the_limit", stopped & ~ended & (completions.lengths >= limit))
        _structure(found, known.form, prompts, completions, finish.tolist())
    if known.context is not None:
        found.add("longer_than_context", np.maximum(prompts.lengths + completions.lengths - known.context, 0))
    _mask(found, prompts, Ragged.of(sequences["loss_mask"]))
    # the ids are counted here anew, since a row's own word for the difference proves nothing
    billed = _numbers(sequences, "billed")
    off = ~np.isnan(billed) & (billed != completions.lengths)
    found.add("billed_count_differs", off | (np.nan_to_num(_numbers(sequences, "billed_delta")) != 0))
    found.add("unverified", np.isnan(billed) | (_texts(sequences, "delta_class") == "unverified"))
    for name, allowed in (("provider", spec.providers), ("model", spec.models), ("quantization", spec.quantizations)):
        if allowed:
            found.add(f"{name}_not_allowed", ~np.isin(_texts(sequences, name), allowed))
    found.add("duplicate_prompt", _repeats(_texts(sequences, "prompt_id").tolist(), seen))
    found.add("truncated" if spec.on_length == "drop" else "cut_by_length", ~stopped)
    found.add("cut_before_max_tokens", ~stopped & (completions.lengths < limit))
    found.add("longer_than_max_tokens", completions.lengths > limit)
    found.add("ends_in_a_loop", end_in_a_loop(completions))
    return found


def prompt_key(prompt_id: str) -> bytes:
    """A prompt id in half the memory."""
    return bytes.fromhex(prompt_id)


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


def _structure(
    found: Figures, form: TokenFormat, prompts: Ragged, completions: Ragged, finish_reasons: list[str]
) -> None:
    faults = form.faults(prompts.rows(), completions.rows(), finish_reasons)
    for row, fault in enumerate(faults):
        if fault is None:
            continue
        if fault.reason != "id_out_of_range" and fault.reason not in STRUCTURE:
            raise ValueError(f"token format {form.name} names a fault that the audit has no rule for: {fault.reason}")
        found.mark(fault.reason, row, fault.detail)


def _mask(found: Figures, prompts: Ragged, mask: Ragged) -> None:
    supervised = mask.count(mask.values == 1)
    answer = mask.positions() >= np.repeat(prompts.lengths, mask.lengths)
    found.add("no_supervised_token", supervised == 0)
    found.add("mask_not_the_answer", mask.count(mask.values != answer))


def _repeats(prompt_ids: list[str], seen: Collection[bytes]) -> Mask:
    here: set[bytes] = set()
    repeats = np.zeros(len(prompt_ids), dtype=bool)
    for row, key in enumerate(map(prompt_key, prompt_ids)):
        repeats[row] = key in seen or key in here
        here.add(key)
    return repeats


def _texts(sequences: pa.Table, name: str) -> Any:
    return np.asarray(sequences[name].to_pylist(), dtype=object)


def _numbers(sequences: pa.Table, name: str) -> npt.NDArray[np.float64]:
    return sequences[name].cast(pa.float64()).to_numpy()  # nulls become NaN


def _outside(ids: Ragged, vocab_size: int) -> Counts:
    return ids.count((ids.values < 0) | (ids.values >= vocab_size))
