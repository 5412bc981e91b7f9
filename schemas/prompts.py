"""Prompts and quarantine: what enters the pipeline, and where every row that cannot go on ends."""

from typing import Any

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

SPLITS = ("train", "benchmark")

_ID = pandera.Check.str_matches(r"^[0-9a-f]{32}$")

PROMPTS = Contract(
    "prompts",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("root_id", pa.string(), nullable=False),
            pa.field("parent_id", pa.string(), nullable=True),
            pa.field("turn", pa.int32(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("source_key", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("messages", pa.string(), nullable=False),
            pa.field("tools", pa.string(), nullable=True),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, _ID, unique=True, description="hash of parent_id, messages and tools"),
            "root_id": pandera.Column(str, _ID, description="prompt_id of the conversation's first turn"),
            "parent_id": pandera.Column(
                str, _ID, nullable=True, description="prompt_id of the turn before; null at the first"
            ),
            "turn": pandera.Column("int32", pandera.Check.ge(0), description="assistant turns before this one"),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "source_key": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "split": pandera.Column(str, pandera.Check.isin(SPLITS)),
            "messages": pandera.Column(
                str, pandera.Check.str_startswith("[{"), description="JSON list: what is new since the turn before"
            ),
            "tools": pandera.Column(
                str, pandera.Check.str_startswith("[{"), nullable=True, description="JSON list of tool declarations"
            ),
        },
        checks=pandera.Check(
            lambda f: f["parent_id"].isna() == (f["turn"] == 0), name="only_first_turns_have_no_parent"
        ),
    ),
)

QUARANTINE = Contract(
    "quarantine",
    pa.schema(
        [
            pa.field("step", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("source_key", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("detail", pa.string(), nullable=False),
            pa.field("raw", pa.binary(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "step": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "source_key": pandera.Column(
                str, pandera.Check.str_length(min_value=1), description="row or line in its source, or prompt id"
            ),
            "reason": pandera.Column(
                str, pandera.Check.str_matches(r"^[a-z][a-z0-9_]+$"), description="class, counted"
            ),
            "detail": pandera.Column(str, description="what a person needs to see why"),
            "raw.length": pandera.Column(int, pandera.Check.ge(0), coerce=True),
        }
    ),
)


def quarantine_row(step: str, dataset: str, source_key: str, reason: str, detail: str, raw: bytes) -> dict[str, Any]:
    """A row of QUARANTINE.

    Args:
        step: who refused the row.
        dataset: the dataset it came from.
        source_key: row or line in its source, or prompt id.
        reason: class, counted.
        detail: what a person needs to see why.
        raw: the row itself, as it was found.
    """
    return {
        "step": step,
        "dataset": dataset,
        "source_key": source_key,
        "reason": reason,
        "detail": detail,
        "raw": raw,
    }
