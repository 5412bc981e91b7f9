"""Counts of what sequences are like (lengths, languages, provenance, billed counts), in memory that does not grow."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from py3langid import classify

from schemas.answers import DISTRIBUTIONS
from schemas.ragged import Counts, Ragged
from tasks.validate.texts import Request

SAMPLE = 1000  # rows whose language is looked at: those with the smallest prompt ids, which are hashes
_LETTERS = 20  # fewer say nothing about a language
_CHARACTERS = 1000  # of a text that are looked at
_PER_OCTAVE = 4
EDGES: Counts = np.unique(np.floor(2 ** (np.arange(0, 24 * _PER_OCTAVE) / _PER_OCTAVE))).astype(np.int64)


class Distributions:
    """Feed it every shard, then ask for its table."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._sample: list[tuple[int, str, str, str]] = []  # a heap: the largest prompt id first

    def count(self, distribution: str, series: str, key: str, rows: int) -> None:
        """Count rows of one kind."""
        self._counts[distribution, series, key] += rows

    def take(self, sequences: pa.Table, requests: Mapping[int, Request], answers: Mapping[int, str]) -> None:
        """Count a shard's rows, each under its dataset; `answers` are the texts of those that were decoded."""
        datasets = np.asarray(sequences["dataset"].to_pylist(), dtype=object)
        for name in ("provenance", "finish_reason", "delta_class"):
            pairs = zip(datasets.tolist(), sequences[name].to_pylist(), strict=True)
            for (dataset, key), rows in Counter(pairs).items():
                self.count(name, dataset, key, rows)
        for name, column in (("prompt_length", "prompt_ids"), ("answer_length", "completion_ids")):
            lengths = Ragged.of(sequences[column]).lengths
            for dataset in set(datasets.tolist()):
                bins = np.searchsorted(EDGES, lengths[datasets == dataset], side="right") - 1
                for place, rows in Counter(bins.tolist()).items():
                    self.count(name, dataset, str(EDGES[place]), rows)
        self._draw(sequences, requests, answers)

    def take_providers(self, providers: pa.Table) -> None:
        """Count what reconstruct found of billed counts (contract PROVIDERS), with the rows that it quarantined."""
        for row in providers.to_pylist():
            delta = "unknown" if row["delta"] is None else str(row["delta"])
            self.count("billed_delta", row["provider"], delta, row["rows"])

    def take_deltas(self, sequences: pa.Table) -> None:
        """Count the billed counts of the rows themselves, where there is no table of providers."""
        deltas = ["unknown" if delta is None else str(delta) for delta in sequences["billed_delta"].to_pylist()]
        names = [name or "none named" for name in sequences["provider"].to_pylist()]
        for (provider, delta), rows in Counter(zip(names, deltas, strict=True)).items():
            self.count("billed_delta", provider, delta, rows)

    def table(self, quarantined: Mapping[str, int]) -> pa.Table:
        """All counts (contract DISTRIBUTIONS), ordered by name; `quarantined` are rows by reason."""
        lost = Counter({("quarantined", "", reason): rows for reason, rows in quarantined.items()})
        counts = self._counts + self._languages() + lost  # the sum leaves out what was never counted
        names = ("distribution", "series", "key", "rows")
        rows = [(*of, counts[of]) for of in sorted(counts, key=_order)]
        return DISTRIBUTIONS.table((dict(zip(names, row, strict=True)) for row in rows), "distributions")

    def _draw(self, sequences: pa.Table, requests: Mapping[int, Request], answers: Mapping[int, str]) -> None:
        numbers = [-int(prompt_id, 16) for prompt_id in sequences["prompt_id"].to_pylist()]
        for row, number in enumerate(numbers):
            if row not in requests or (len(self._sample) >= SAMPLE and number <= self._sample[0][0]):
                continue
            dataset = sequences["dataset"][row].as_py()
            asked = "\n".join(requests[row].user_turns)[:_CHARACTERS]
            entry = (number, dataset, asked, answers.get(row, "")[:_CHARACTERS])
            (heapq.heappushpop if len(self._sample) >= SAMPLE else heapq.heappush)(self._sample, entry)

    def _languages(self) -> Counter[tuple[str, str, str]]:
        counts: Counter[tuple[str, str, str]] = Counter()
        for _, dataset, asked, answered in self._sample:
            counts["prompt_language", dataset, language(asked)] += 1
            if answered:
                counts["answer_language", dataset, language(answered)] += 1
        return counts


def language(text: str) -> str:
    """The code of a text's language, or "unclear" where it has too few letters to tell."""
    if sum(map(str.isalpha, text)) < _LETTERS:
        return "unclear"
    return classify(text)[0]


def _order(of: tuple[str, str, str]) -> tuple[str, str, int, str]:
    distribution, series, key = of
    return distribution, series, int(key) if key.lstrip("-").isdecimal() else 0, key
