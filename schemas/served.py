"""What the benchmark of a draft in real engines measured: one row per prompt, and one per pass over the prompts."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

ENGINES = ("transformers", "vllm", "sglang", "llamacpp")
DRAFTERS_SERVED = ("none", "ngram", "draft")
COUNTED_BY = ("loop", "response", "counters", "none")

_COUNT_LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))
SETTING_FIELDS = [
    pa.field("engine", pa.string(), nullable=False),
    pa.field("drafter", pa.string(), nullable=False),
    pa.field("steps", pa.int32(), nullable=False),
    pa.field("top_k", pa.int32(), nullable=False),
    pa.field("draft_tokens", pa.int32(), nullable=False),
    pa.field("temperature", pa.float64(), nullable=False),
    pa.field("concurrency", pa.int32(), nullable=False),
]
_COUNT_FIELDS = [
    pa.field("verify_steps", pa.int32(), nullable=True),
    pa.field("drafted", pa.int32(), nullable=True),
    pa.field("accepted", pa.int32(), nullable=True),
    pa.field("accepted_by_position", _COUNT_LIST, nullable=True),
]
SETTING_COLUMNS = {
    "engine": pandera.Column(str, pandera.Check.isin(ENGINES)),
    "drafter": pandera.Column(str, pandera.Check.isin(DRAFTERS_SERVED)),
    "steps": pandera.Column("int32", pandera.Check.ge(0), description="draft steps per verify step; 0 without a draft"),
    "top_k": pandera.Column("int32", pandera.Check.ge(0), description="branches per draft step; 1 is a chain"),
    "draft_tokens": pandera.Column(
        "int32", pandera.Check.ge(0), description="tokens verified together, the last known one among them"
    ),
    "temperature": pandera.Column(float, pandera.Check.ge(0)),
    "concurrency": pandera.Column("int32", pandera.Check.ge(1), description="requests in flight, or rows in a batch"),
}
_COUNT_COLUMNS = {
    "verify_steps": pandera.Column(
        float, pandera.Check.ge(0), nullable=True, coerce=True, description="forward passes that verified drafts"
    ),
    "drafted": pandera.Column(float, pandera.Check.ge(0), nullable=True, coerce=True),
    "accepted": pandera.Column(float, pandera.Check.ge(0), nullable=True, coerce=True),
}
_COUNTS_FIT = pandera.Check(
    lambda f: ~(f["accepted"] > f["drafted"]), name="accepted_within_drafted"
)  # written so that null counts pass

SERVED = Contract(
    "served",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("turn", pa.int32(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            *SETTING_FIELDS,
            pa.field("prompt_ids", _COUNT_LIST, nullable=False),
            pa.field("output_ids", _COUNT_LIST, nullable=False),
            pa.field("finish_reason", pa.string(), nullable=False),
            *_COUNT_FIELDS,
            pa.field("first_seconds", pa.float64(), nullable=False),
            pa.field("seconds", pa.float64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "turn": pandera.Column("int32", pandera.Check.ge(0), description="assistant turns before this one"),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            **SETTING_COLUMNS,
            "prompt_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "output_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "finish_reason": pandera.Column(str, pandera.Check.isin(("stop", "length"))),
            **_COUNT_COLUMNS,
            "first_seconds": pandera.Column(float, pandera.Check.ge(0), description="time to the first token"),
            "seconds": pandera.Column(float, pandera.Check.ge(0), description="time to the last token"),
        },
        checks=_COUNTS_FIT,
    ),
)

SERVED_PASS = Contract(
    "served_pass",
    pa.schema(
        [
            *SETTING_FIELDS,
            pa.field("answers", pa.int32(), nullable=False),
            pa.field("tokens", pa.int64(), nullable=False),
            pa.field("seconds", pa.float64(), nullable=False),
            pa.field("counted_by", pa.string(), nullable=False),
            *_COUNT_FIELDS,
        ]
    ),
    pandera.DataFrameSchema(
        {
            **SETTING_COLUMNS,
            "answers": pandera.Column("int32", pandera.Check.ge(0)),
            "tokens": pandera.Column("int64", pandera.Check.ge(0), description="new tokens of all answers"),
            "seconds": pandera.Column(float, pandera.Check.ge(0), description="wall time of the pass"),
            "counted_by": pandera.Column(
                str,
                pandera.Check.isin(COUNTED_BY),
                description="our loop, each response, the server's counters around the pass, or nothing to count",
            ),
            **_COUNT_COLUMNS,
        },
        checks=_COUNTS_FIT,
    ),
)

HISTORY = Contract(
    "benchmark_history",
    pa.schema(
        [
            pa.field("made_at", pa.string(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            pa.field("label", pa.string(), nullable=False),
            pa.field("length", pa.float64(), nullable=False),
            pa.field("low", pa.float64(), nullable=False),
            pa.field("high", pa.float64(), nullable=False),
            pa.field("tokens_per_second", pa.float64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "made_at": pandera.Column(str, pandera.Check.str_length(min_value=1), description="ISO 8601"),
            "key": pandera.Column(str, description="of the collect_benchmark artifact"),
            "label": pandera.Column(str, pandera.Check.str_length(min_value=1), description="engine, drafter, setting"),
            "length": pandera.Column(float, pandera.Check.ge(1)),
            "low": pandera.Column(float, nullable=True, description="NaN where counts are not known per prompt"),
            "high": pandera.Column(float, nullable=True),
            "tokens_per_second": pandera.Column(float, nullable=True),
        }
    ),
)
