"""Answers as an engine returned them, and the exact token sequences rebuilt from them."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

FINISH_REASONS = ("stop", "length")
PROVENANCES = ("returned", "reconstructed")

_ID_LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))

ANSWERS = Contract(
    "answers",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("prompt_ids", _ID_LIST, nullable=False),
            pa.field("output_ids", _ID_LIST, nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("finish_reason", pa.string(), nullable=False),
            pa.field("prompt_tokens", pa.int32(), nullable=False),
            pa.field("completion_tokens", pa.int32(), nullable=False),
            pa.field("engine", pa.string(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_matches(r"^[0-9a-f]{32}$"), unique=True),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "prompt_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "output_ids.length": pandera.Column(int, pandera.Check.ge(0), coerce=True),
            "finish_reason": pandera.Column(str, pandera.Check.isin(FINISH_REASONS)),
            "prompt_tokens": pandera.Column("int32", pandera.Check.ge(1), description="as the engine counted them"),
            "completion_tokens": pandera.Column("int32", pandera.Check.ge(0), description="as billed, end id included"),
            "engine": pandera.Column(str, pandera.Check.str_length(min_value=1)),
        }
    ),
)

SEQUENCES = Contract(
    "sequences",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("prompt_ids", _ID_LIST, nullable=False),
            pa.field("completion_ids", _ID_LIST, nullable=False),
            pa.field("provenance", pa.string(), nullable=False),
            pa.field("finish_reason", pa.string(), nullable=False),
            pa.field("billed_delta", pa.int32(), nullable=False),
            pa.field("template_sha256", pa.string(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_matches(r"^[0-9a-f]{32}$"), unique=True),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "prompt_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "prompt_ids.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "completion_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "completion_ids.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "provenance": pandera.Column(str, pandera.Check.isin(PROVENANCES)),
            "finish_reason": pandera.Column(str, pandera.Check.isin(FINISH_REASONS)),
            "billed_delta": pandera.Column("int32", pandera.Check.eq(0), description="rebuilt minus billed ids"),
            "template_sha256": pandera.Column(str, pandera.Check.str_matches(r"^[0-9a-f]{64}$")),
        }
    ),
)

AUDIT = Contract(
    "audit",
    pa.schema(
        [
            pa.field("check", pa.string(), nullable=False),
            pa.field("rows", pa.int64(), nullable=False),
            pa.field("failed", pa.int64(), nullable=False),
            pa.field("limit", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "check": pandera.Column(
                str, pandera.Check.str_length(min_value=1), unique=True, description="the named rule"
            ),
            "rows": pandera.Column("int64", pandera.Check.ge(0), description="rows looked at"),
            "failed": pandera.Column("int64", pandera.Check.ge(0), description="rows quarantined by this rule"),
            "limit": pandera.Column("int64", pandera.Check.ge(0), description="rows that the gate lets fail"),
        },
        checks=pandera.Check(lambda frame: frame["failed"] <= frame["rows"], name="failed_within_rows"),
    ),
)
