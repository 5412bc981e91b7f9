"""Prompts and quarantine: what enters the pipeline, and where every row that cannot go on ends."""

from typing import Any

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

SPLITS = ("train", "benchmark")

PROMPTS = Contract(
    "prompts",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("source_key", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("messages", pa.string(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(
                str, pandera.Check.str_matches(r"^[0-9a-f]{32}$"), unique=True, description="hash of the messages"
            ),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "source_key": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "split": pandera.Column(str, pandera.Check.isin(SPLITS)),
            "messages": pandera.Column(str, pandera.Check.str_startswith("[{"), description="JSON list of messages"),
        }
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
