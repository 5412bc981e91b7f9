"""From the bytes of all datasets to the prompts of a run: parsed, without duplicates, apart from the benchmarks, mixed.

Every row read is a prompt, a quarantined row, or a good row that its dataset's limit left out; this is asserted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.prompts.adapters import Prompt, Rejected, parse_rows
from tasks.prompts.decontaminate import BenchmarkIndex


@dataclass
class Gathered:
    """The prompts of a run, in the order in which they are sharded, and what became of every other row."""

    train: list[Prompt] = field(default_factory=list)
    benchmark: list[Prompt] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    rows_read: dict[str, int] = field(default_factory=dict)
    left_by_limit: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, object]:
        """Counts of rows; `rows_in` leaves out the good rows that a limit left."""
        by_dataset = {
            name: _counted(row.reason for row in self.rejected if row.dataset == name) for name in self.rows_read
        }
        return {
            "rows_read": self.rows_read,
            "rows_in": sum(self.rows_read.values()) - sum(self.left_by_limit.values()),
            "rows_out": len(self.train) + len(self.benchmark),
            "train": len(self.train),
            "benchmark": len(self.benchmark),
            "left_by_limit": self.left_by_limit,
            "quarantined": _counted(row.reason for row in self.rejected),
            "quarantined_by_dataset": {name: reasons for name, reasons in by_dataset.items() if reasons},
        }


def gather(datasets: list[DatasetSpec], contents: list[bytes]) -> Gathered:
    """All prompts of the datasets, whose bytes are given in the same order.

    Of equal prompts the first stays, in the recipe's order of datasets. A training prompt is compared with every
    benchmark prompt, also with those that a limit leaves out. The result is ordered by prompt id, a hash, so that all
    shards have the same mix of datasets.

    Raises:
        PromptSourceError: no row of a dataset can be read, or nothing is left of a split.
    """
    gathered = Gathered()
    parsed = [_parse(dataset, content, gathered) for dataset, content in zip(datasets, contents, strict=True)]
    pairs = list(zip(datasets, parsed, strict=True))
    benchmarks = [(dataset, prompts) for dataset, prompts in pairs if dataset.split == "benchmark"]
    index = BenchmarkIndex(prompt for _, prompts in benchmarks for prompt in prompts)
    seen: dict[str, str] = {}
    for dataset, prompts in benchmarks:
        gathered.benchmark += _limited(dataset, _first_of_each(prompts, seen, gathered), gathered)
    seen = {}
    for dataset, prompts in pairs:
        if dataset.split == "train":
            apart = _apart_from(index, prompts, gathered)
            gathered.train += _limited(dataset, _first_of_each(apart, seen, gathered), gathered)
    for split in (gathered.train, gathered.benchmark):
        split.sort(key=lambda prompt: prompt.prompt_id)
    _check(gathered)
    return gathered


def spread(count: int, limit: int) -> list[int]:
    """Positions of at most `limit` of `count` things, evenly spread from the first on; a limit of 0 takes all."""
    if limit == 0 or limit >= count:
        return list(range(count))
    return [place * count // limit for place in range(limit)]


def _parse(dataset: DatasetSpec, content: bytes, gathered: Gathered) -> list[Prompt]:
    prompts: list[Prompt] = []
    faults: list[Rejected] = []
    for row in parse_rows(content, dataset.name, dataset.adapter):
        if isinstance(row, Prompt):
            prompts.append(row)
        else:
            faults.append(row)
    gathered.rows_read[dataset.name] = len(prompts) + len(faults)
    gathered.rejected += faults
    if not prompts:
        first = f"{faults[0].reason}: {faults[0].detail}" if faults else "it has no rows"
        raise PromptSourceError(
            f"dataset {dataset.name!r} (source {dataset.source}): none of its {len(faults)} rows is a prompt for "
            f"adapter {dataset.adapter!r}; the first fails as {first}. Mend the file, or name the adapter that fits it"
        )
    return prompts


def _first_of_each(prompts: Iterable[Prompt], seen: dict[str, str], gathered: Gathered) -> list[Prompt]:
    kept = []
    for prompt in prompts:
        if first := seen.get(prompt.prompt_id):
            gathered.rejected.append(_rejected(prompt, "duplicate_prompt", f"the same messages as {first}"))
        else:
            seen[prompt.prompt_id] = f"{prompt.dataset} {prompt.source_key}"
            kept.append(prompt)
    return kept


def _apart_from(index: BenchmarkIndex, prompts: Iterable[Prompt], gathered: Gathered) -> list[Prompt]:
    kept = []
    for prompt in prompts:
        if overlap := index.overlap(prompt):
            detail = f"{overlap.how} as benchmark prompt {overlap.benchmark}"
            gathered.rejected.append(_rejected(prompt, "benchmark_overlap", detail))
        else:
            kept.append(prompt)
    return kept


def _limited(dataset: DatasetSpec, prompts: list[Prompt], gathered: Gathered) -> list[Prompt]:
    taken = [prompts[place] for place in spread(len(prompts), dataset.limit)]
    if left := len(prompts) - len(taken):
        gathered.left_by_limit[dataset.name] = left
    return taken


def _rejected(prompt: Prompt, reason: str, detail: str) -> Rejected:
    return Rejected(prompt.dataset, prompt.source_key, reason, detail, prompt.messages.encode())


def _check(gathered: Gathered) -> None:
    read, left = sum(gathered.rows_read.values()), sum(gathered.left_by_limit.values())
    out = len(gathered.train) + len(gathered.benchmark)
    if read != out + len(gathered.rejected) + left:
        raise AssertionError(f"{read} rows read, but {out} kept, {len(gathered.rejected)} quarantined, {left} left out")
    for split, prompts in (("train", gathered.train), ("benchmark", gathered.benchmark)):
        if not prompts:
            reasons = _counted(row.reason for row in gathered.rejected)
            raise PromptSourceError(
                f"datasets: no {split} prompt is left after quarantine ({reasons}); add prompts with split: {split}"
            )


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items()))
