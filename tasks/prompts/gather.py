"""From all sources to the prompts of a run: parsed, without duplicates, apart from the benchmarks, mixed.

Every row read is a conversation, a quarantined row, or a good row that its dataset's limit left out; this is asserted.
Benchmarks are held in memory, training data is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from schemas.errors import PromptSourceError
from schemas.sections import DatasetSpec
from tasks.overlap import Asked, BenchmarkIndex
from tasks.prompts.conversation import Conversation, Rejected
from tasks.prompts.hub import HubSource
from tasks.prompts.locate import Source, named
from tasks.prompts.parse import read_conversations
from tasks.prompts.selection import Selection
from tasks.prompts.spool import Spool


class Quarantine:
    """The rows that could not go on, on disk, and their counts."""

    def __init__(self, folder: Path | None = None) -> None:
        self._rows = Spool(folder)
        self.reasons: Counter[tuple[str, str]] = Counter()

    def add(self, row: Rejected) -> None:
        """Keep a row."""
        texts = (row.dataset, row.source_key, row.reason, row.detail)
        self._rows.append([*(text.encode("utf-8", "backslashreplace") for text in texts), row.raw])
        self.reasons[row.dataset, row.reason] += 1

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Rejected]:
        for *texts, raw in self._rows:
            dataset, key, reason, detail = (text.decode() for text in texts)
            yield Rejected(dataset, key, reason, detail, raw)

    def counted(self, dataset: str | None = None) -> dict[str, int]:
        """How many rows of one dataset, or of all, have each reason."""
        counts: Counter[str] = Counter()
        for (name, reason), count in self.reasons.items():
            if dataset in (None, name):
                counts[reason] += count
        return dict(sorted(counts.items()))


@dataclass
class Gathered:
    """The prompts of a run, and what became of every other row."""

    train: Selection
    benchmark: Selection
    rejected: Quarantine
    rows_read: dict[str, int] = field(default_factory=dict)
    left_by_limit: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, object]:
        """Counts. Rows are those of the sources, one conversation each; `rows_in` leaves out those a limit left.

        `train` and `benchmark` are prompts, one per turn; `shared_turns` those that were not repeated because another
        conversation begins in the same way.
        """
        by_dataset = {name: self.rejected.counted(name) for name in self.rows_read}
        splits = {"train": self.train, "benchmark": self.benchmark}
        return {
            "rows_read": self.rows_read,
            "rows_in": sum(self.rows_read.values()) - sum(self.left_by_limit.values()),
            "rows_out": self.train.conversations + self.benchmark.conversations,
            "conversations": {name: split.conversations for name, split in splits.items()},
            **{name: len(split) for name, split in splits.items()},
            "shared_turns": sum(split.turns - len(split) for split in splits.values()),
            "left_by_limit": self.left_by_limit,
            "quarantined": self.rejected.counted(),
            "quarantined_by_dataset": {name: reasons for name, reasons in by_dataset.items() if reasons},
        }


def gather(datasets: list[DatasetSpec], sources: list[Source], folder: Path | None = None) -> Gathered:
    """All prompts of the datasets, whose sources are given in the same order.

    Of equal conversations the first stays, in the recipe's order of datasets; also one that another begins with is
    equal to it. A training conversation is compared with every benchmark prompt, also with those that a limit leaves
    out. A limit takes conversations evenly spread over a file, and of a Hub dataset the first that can be used of a
    seeded shuffle.

    Args:
        datasets: the recipe's datasets.
        sources: from `locate_sources`.
        folder: where rows are set aside if they are many; none takes the system's folder for temporary files.

    Raises:
        PromptSourceError: a source cannot be read, has not one usable row, or nothing is left of a split.
    """
    gathered = Gathered(Selection(folder), Selection(folder), Quarantine(folder))
    pairs = list(zip(datasets, sources, strict=True))
    asked: list[Asked] = []
    seen: dict[bytes, int] = {}
    for dataset, source in pairs:
        if dataset.split == "benchmark":
            found = list(_parsed(dataset, source, gathered))
            asked += map(_asked, found)
            _take(dataset, source, found, gathered.benchmark, seen, gathered)
    index = BenchmarkIndex(asked)
    seen = {}
    for dataset, source in pairs:
        if dataset.split == "train":
            apart = _apart_from(index, _parsed(dataset, source, gathered), gathered)
            _take(dataset, source, apart, gathered.train, seen, gathered)
    _check(gathered, {dataset.split for dataset in datasets})
    return gathered


def spread(count: int, limit: int) -> Iterator[int]:
    """Positions of at most `limit` of `count` things, evenly spread from the first on; a limit of 0 takes all."""
    if limit == 0 or limit >= count:
        return iter(range(count))
    return (place * count // limit for place in range(limit))


def _parsed(dataset: DatasetSpec, source: Source, gathered: Gathered) -> Iterator[Conversation]:
    gathered.rows_read[dataset.name] = 0
    good = False
    fault: Rejected | None = None
    for row in read_conversations(dataset, source):
        gathered.rows_read[dataset.name] += 1
        if isinstance(row, Rejected):
            fault = fault or row
            gathered.rejected.add(row)
        else:
            good = True
            yield row
    if not good:
        first = f"the first fails as {fault.reason}: {fault.detail}" if fault else "it is empty"
        raise PromptSourceError(
            f"{named(dataset)}: none of its {gathered.rows_read[dataset.name]} rows is a prompt for adapter "
            f"{dataset.adapter!r}; {first}. Mend the source, or name the adapter that fits it"
        )


def _apart_from(
    index: BenchmarkIndex, conversations: Iterable[Conversation], gathered: Gathered
) -> Iterator[Conversation]:
    for conversation in conversations:
        if overlap := index.overlap(_asked(conversation)):
            detail = f"{overlap.how} as benchmark prompt {overlap.benchmark}"
            gathered.rejected.add(_rejected(conversation, "benchmark_overlap", detail))
        else:
            yield conversation


def _take(
    dataset: DatasetSpec,
    source: Source,
    conversations: Iterable[Conversation],
    split: Selection,
    seen: dict[bytes, int],
    gathered: Gathered,
) -> None:
    distinct = _first_of_each(conversations, split, seen, gathered)
    if isinstance(source, HubSource) and dataset.limit:
        distinct = islice(distinct, dataset.limit)  # nobody knows how many there are, and no more are fetched
    start, count = split.aside, sum(1 for _ in distinct)
    for position in spread(count, dataset.limit):
        split.take(start + position)
    if dataset.limit and count > dataset.limit:
        gathered.left_by_limit[dataset.name] = count - dataset.limit


def _first_of_each(
    conversations: Iterable[Conversation], split: Selection, seen: dict[bytes, int], gathered: Gathered
) -> Iterator[int]:
    """Sets aside what is new, and gives its place. `seen` has the ids of all turns so far, and where each is first."""
    for conversation in conversations:
        first = seen.get(bytes.fromhex(conversation.last_id))
        if first is not None:
            same = split.at(first)
            detail = f"the same messages as {same.dataset} {same.source_key}"
            gathered.rejected.add(_rejected(conversation, "duplicate_prompt", detail))
            continue
        place = split.set_aside(conversation)
        for turn in conversation.turns:
            seen.setdefault(bytes.fromhex(turn.prompt_id), place)
        yield place


def _asked(conversation: Conversation) -> Asked:
    name = f"{conversation.dataset} {conversation.source_key}"
    return Asked(name, conversation.root_id, conversation.user_turns)


def _rejected(conversation: Conversation, reason: str, detail: str) -> Rejected:
    raw = b"\n".join(turn.messages.encode() for turn in conversation.turns)
    return Rejected(conversation.dataset, conversation.source_key, reason, detail, raw)


def _check(gathered: Gathered, wanted: set[str]) -> None:
    read, left = sum(gathered.rows_read.values()), sum(gathered.left_by_limit.values())
    splits = {"train": gathered.train, "benchmark": gathered.benchmark}
    out = sum(split.conversations for split in splits.values())
    if read != out + len(gathered.rejected) + left:
        raise AssertionError(f"{read} rows read, but {out} kept, {len(gathered.rejected)} quarantined, {left} left out")
    for name, split in splits.items():
        if name in wanted and not split.conversations:
            raise PromptSourceError(
                f"datasets: no {name} prompt is left after quarantine ({gathered.rejected.counted()}); add prompts "
                f"with split: {name}"
            )
