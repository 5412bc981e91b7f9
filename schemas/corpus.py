"""The training corpus, the draft vocabulary and its coverage, the hidden states, and the probe of them."""

from typing import Any

import pandas as pd
import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

CORPUS_SPLITS = ("train", "heldout")
STATE_BYTES = 2  # bfloat16
MOST_CELL_BYTES = 2**31 - 1  # of a binary Parquet value

_ID_LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))

CORPUS = Contract(
    "corpus",
    pa.schema(
        [
            pa.field("sequence_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("token_ids", _ID_LIST, nullable=False),
            pa.field("prompt_length", pa.int32(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "sequence_id": pandera.Column(str, pandera.Check.str_length(min_value=1), unique=True),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "split": pandera.Column(str, pandera.Check.isin(CORPUS_SPLITS)),
            "token_ids.length": pandera.Column(int, pandera.Check.ge(2), coerce=True),
            "token_ids.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "prompt_length": pandera.Column("int32", pandera.Check.ge(1), description="ids before the completion"),
        },
        checks=pandera.Check(lambda f: f["prompt_length"] < f["token_ids.length"], name="has_a_completion"),
    ),
)

VOCABULARY = Contract(
    "vocabulary",
    pa.schema(
        [
            pa.field("draft_id", pa.int32(), nullable=False),
            pa.field("target_id", pa.int32(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("forced", pa.bool_(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "draft_id": pandera.Column("int32", pandera.Check.ge(0), unique=True),
            "target_id": pandera.Column("int32", pandera.Check.ge(0), unique=True),
            "count": pandera.Column("int64", pandera.Check.ge(0), description="times in the training completions"),
            "forced": pandera.Column(bool, description="control id, always in"),
        },
        checks=pandera.Check(lambda f: f["draft_id"] == f.index, name="draft_ids_count_up"),
    ),
)

COVERAGE = Contract(
    "coverage",
    pa.schema(
        [
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("tokens", pa.int64(), nullable=False),
            pa.field("covered", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "split": pandera.Column(str, pandera.Check.isin(CORPUS_SPLITS)),
            "tokens": pandera.Column("int64", pandera.Check.ge(1)),
            "covered": pandera.Column("int64", pandera.Check.ge(0)),
        },
        checks=pandera.Check(lambda f: f["covered"] <= f["tokens"], name="covered_within_tokens"),
    ),
)

LOST_MASS = Contract(
    "lost_mass",
    pa.schema(
        [
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("positions", pa.int64(), nullable=False),
            pa.field("lost_mass", pa.float64(), nullable=False),
            pa.field("best_outside", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1), unique=True),
            "positions": pandera.Column("int64", pandera.Check.ge(1), description="of held-out completions"),
            "lost_mass": pandera.Column(
                float, pandera.Check.in_range(0, 1), description="mean probability of tokens outside the vocabulary"
            ),
            "best_outside": pandera.Column(
                "int64", pandera.Check.ge(0), description="positions whose likeliest token is outside"
            ),
        },
        checks=pandera.Check(lambda f: f["best_outside"] <= f["positions"], name="outside_within_positions"),
    ),
)


def _states_fit(f: pd.DataFrame) -> Any:
    """Bytes of the states: as many as ids and dtype ask for."""
    each = f["hidden_size"] * (STATE_BYTES - (f["dtype"] == "float8"))
    taught = (f["token_ids.length"] - f["last_from"]) * (f["top_k"] == 0)
    return (f["aux.length"] == f["token_ids.length"] * 3 * each) & (f["last.length"] == taught * each)


def _scales_fit(f: pd.DataFrame) -> Any:
    taught = (f["token_ids.length"] - f["last_from"]) * (f["top_k"] == 0)
    return f["scales.length"] == 4 * (f["token_ids.length"] * 3 + taught) * (f["dtype"] == "float8")


def _top_fits(f: pd.DataFrame) -> Any:
    wanted = (f["token_ids.length"] - f["last_from"]) * 4 * f["top_k"]
    return (f["top_ids.length"] == wanted) & (f["top_log_probabilities.length"] == wanted)


HIDDEN_STATES = Contract(
    "hidden_states",
    pa.schema(
        [
            pa.field("place", pa.int32(), nullable=False),
            pa.field("sequence_id", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("token_ids", _ID_LIST, nullable=False),
            pa.field("prompt_length", pa.int32(), nullable=False),
            pa.field("hidden_size", pa.int32(), nullable=False),
            pa.field("dtype", pa.string(), nullable=False),
            pa.field("aux", pa.large_binary(), nullable=False),
            pa.field("last_from", pa.int32(), nullable=False),
            pa.field("last", pa.large_binary(), nullable=False),
            pa.field("scales", pa.large_binary(), nullable=False),
            pa.field("top_k", pa.int32(), nullable=False),
            pa.field("top_ids", pa.large_binary(), nullable=False),
            pa.field("top_log_probabilities", pa.large_binary(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "place": pandera.Column("int32", pandera.Check.ge(0), unique=True, description="row of the corpus shard"),
            "sequence_id": pandera.Column(str, pandera.Check.str_length(min_value=1), unique=True),
            "split": pandera.Column(str, pandera.Check.isin(CORPUS_SPLITS)),
            "token_ids.length": pandera.Column(
                int, pandera.Check.ge(2), coerce=True, description="ids from the first whose states are kept"
            ),
            "prompt_length": pandera.Column("int32", pandera.Check.ge(1)),
            "hidden_size": pandera.Column("int32", pandera.Check.ge(1)),
            "dtype": pandera.Column(
                str, pandera.Check.isin(("bfloat16", "float8")), description="float8 is e4m3 with a scale per state"
            ),
            "aux.length": pandera.Column(int, description="bytes of [tokens, 3, hidden]", coerce=True),
            "last_from": pandera.Column(
                "int32", pandera.Check.ge(0), description="position of the first stored last state"
            ),
            "last.length": pandera.Column(int, description="bytes of [tokens - last_from, hidden]", coerce=True),
            "scales.length": pandera.Column(
                int, description="bytes of float32 [tokens, 3], then [tokens - last_from], for float8", coerce=True
            ),
            "top_k": pandera.Column("int32", pandera.Check.ge(0), description="likeliest tokens in place of the state"),
            "top_ids.length": pandera.Column(int, description="bytes of int32 [tokens - last_from, k]", coerce=True),
            "top_log_probabilities.length": pandera.Column(int, description="float32, of the same", coerce=True),
        },
        checks=[
            pandera.Check(_states_fit, name="one_state_per_id"),
            pandera.Check(_scales_fit, name="one_scale_per_state"),
            pandera.Check(_top_fits, name="likeliest_tokens_per_served_id"),
        ],
    ),
)

PROBE = Contract(
    "probe",
    pa.schema(
        [
            pa.field("check", pa.string(), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
            pa.field("limit", pa.float64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "check": pandera.Column(
                str, pandera.Check.str_length(min_value=1), unique=True, description="the named rule"
            ),
            "value": pandera.Column(float, description="the figure found"),
            "limit": pandera.Column(float, description="the figure that it may not pass"),
        }
    ),
)
