"""Passes: all prompts of a benchmark through one engine, with one drafter, at one temperature and concurrency.

What was answered is on disk when a pass breaks off; the next attempt asks for the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from schemas.benchmarking import EngineName, SpeculationSpec
from schemas.errors import ArtifactInvalid
from schemas.served import SERVED, SERVED_PASS
from tasks.artifacts.files import read_table, write_table
from tasks.benchmark.served.conversations import Asked, Conversations
from tasks.benchmark.served.spoken import Counts, Spoken


class Run(BaseModel):
    """What one server, or one load of the models, is used for. Its fields are part of the result's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineName
    drafter: str  # none, ngram or draft
    speculation: SpeculationSpec | None = None  # None without a drafter

    @property
    def label(self) -> str:
        """For people, such as "vllm draft 3/1/4"."""
        return " ".join([self.engine, self.drafter, *([self.speculation.label] if self.speculation else [])])

    @property
    def chain(self) -> int:
        """Drafted tokens that can be accepted at once, 0 without a drafter."""
        return self.speculation.steps if self.speculation else 0


@dataclass(frozen=True)
class Setting:
    """How the prompts of a pass are asked."""

    temperature: float
    concurrency: int

    @property
    def label(self) -> str:
        """For file names."""
        return f"t{self.temperature:g}-c{self.concurrency}"


class Speaker(Protocol):
    """An engine as a pass sees it."""

    counted_by: str  # see SERVED_PASS

    def speak(self, asked: Sequence[Asked], setting: Setting, max_tokens: int, take: Take) -> Counts | None:
        """Answer prompts, giving each to `take` as soon as it is there; the counts of all, None if they are not known.

        Raises:
            EngineError: the engine fails; what it had answered has been taken.
        """
        ...


Take = Callable[[Asked, Spoken], None]


def run_pass(
    run: Run,
    setting: Setting,
    speaker: Speaker,
    conversations: Conversations,
    max_tokens: int,
    folder: Path,
    advance: Callable[[int], None],
) -> tuple[pa.Table, pa.Table, list[dict[str, Any]]]:
    """One pass; rows of SERVED, one row of SERVED_PASS, rows of QUARANTINE.

    Raises:
        EngineError: the engine fails; its answers so far are in `folder`.
    """
    whole, summary = folder / f"{setting.label}.parquet", folder / f"{setting.label}.pass.parquet"
    part = folder / f"{setting.label}.part.parquet"
    kept = _read(summary, SERVED_PASS)
    rows = {row["prompt_id"]: row for row in (_read(whole, SERVED) or _read(part, SERVED) or _NOTHING).to_pylist()}
    advance(len(rows))
    # the times and counters of answers that an earlier attempt had are those of its rows
    seconds, total, lost = 0.0, _summed(rows.values(), run.chain), list[dict[str, Any]]()

    def take(asked: Asked, spoken: Spoken) -> None:
        rows[asked.prompt.prompt_id] = _row(run, setting, asked, spoken)
        advance(1)

    for level in range(conversations.levels):
        ready, refused = conversations.ready(level, {name: row["output_ids"] for name, row in rows.items()})
        lost += refused
        missing = [asked for asked in ready if asked.prompt.prompt_id not in rows]
        if not missing:
            continue
        started = time.perf_counter()
        try:
            counts = speaker.speak(missing, setting, max_tokens, take)
        except BaseException:
            if rows:
                write_table(part, SERVED.table(rows.values(), "answers so far"), SERVED)
            raise
        seconds += time.perf_counter() - started
        total = _added(total, counts) if total and counts else None
    place = {row["prompt_id"]: number for number, row in enumerate(conversations.rows)}
    answers = SERVED.table(sorted(rows.values(), key=lambda row: place[row["prompt_id"]]), "answers")
    if kept is None:
        kept = SERVED_PASS.table([_pass_row(run, setting, speaker, answers, seconds, total)], "pass")
        write_table(whole, answers, SERVED)
        write_table(summary, kept, SERVED_PASS)
        part.unlink(missing_ok=True)
    return answers, kept, lost


_NOTHING = SERVED.arrow.empty_table()


def setting_columns(run: Run, setting: Setting) -> dict[str, Any]:
    """The columns that say how a row came about."""
    speculation = run.speculation
    return {
        "engine": run.engine,
        "drafter": run.drafter,
        "steps": speculation.steps if speculation else 0,
        "top_k": speculation.top_k if speculation else 0,
        "draft_tokens": speculation.verified if speculation else 0,
        "temperature": setting.temperature,
        "concurrency": setting.concurrency,
    }


def _row(run: Run, setting: Setting, asked: Asked, spoken: Spoken) -> dict[str, Any]:
    return {
        "prompt_id": asked.prompt.prompt_id,
        "turn": asked.turn,
        "dataset": asked.prompt.dataset,
        **setting_columns(run, setting),
        "prompt_ids": list(asked.prompt.ids),
        "output_ids": list(spoken.output_ids),
        "finish_reason": spoken.finish_reason,
        **_count_columns(spoken.counts),
        "first_seconds": spoken.first_seconds,
        "seconds": spoken.seconds,
    }


def _pass_row(
    run: Run, setting: Setting, speaker: Speaker, answers: pa.Table, seconds: float, total: Counts | None
) -> dict[str, Any]:
    lengths = [len(ids) for ids in answers["output_ids"].to_pylist()]
    return {
        **setting_columns(run, setting),
        "answers": len(lengths),
        "tokens": sum(lengths),
        "seconds": seconds,
        "counted_by": speaker.counted_by if run.chain else "none",
        **_count_columns(total if run.chain else None),
    }


def _count_columns(counts: Counts | None) -> dict[str, Any]:
    return {
        "verify_steps": counts.verify_steps if counts else None,
        "drafted": counts.drafted if counts else None,
        "accepted": counts.accepted if counts else None,
        "accepted_by_position": list(counts.by_position) if counts and counts.by_position is not None else None,
    }


def _summed(rows: Iterable[Mapping[str, Any]], places: int) -> Counts | None:
    """The counts of rows together, None if one row's are not known."""
    total: Counts | None = Counts(0, 0, 0, (0,) * places)
    for row in rows:
        if row["verify_steps"] is None or total is None:
            return None
        positions = row["accepted_by_position"]
        counts = Counts(
            row["verify_steps"], row["drafted"], row["accepted"], None if positions is None else tuple(positions)
        )
        total = _added(total, counts)
    return total


def _added(one: Counts, other: Counts) -> Counts:
    places = None
    if one.by_position is not None and other.by_position is not None:
        places = tuple(a + b for a, b in zip(one.by_position, other.by_position, strict=True))
    return Counts(
        one.verify_steps + other.verify_steps, one.drafted + other.drafted, one.accepted + other.accepted, places
    )


def _read(path: Path, contract: Any) -> pa.Table | None:
    try:
        return read_table(path, contract)
    except ArtifactInvalid:  # not there, or not whole
        return None
