"""What training and the benchmark measured, one row per step or per prompt, so that every figure can be recomputed."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

DRAFTERS = ("none", "ngram", "untrained", "trained")

_COUNT_LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))

TRAINING_CURVE = Contract(
    "training_curve",
    pa.schema(
        [
            pa.field("step", pa.int32(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("position", pa.int32(), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "step": pandera.Column("int32", pandera.Check.ge(0), description="optimiser steps done"),
            "kind": pandera.Column(
                str, pandera.Check.isin(("loss", "learning_rate", "simulated_acceptance", "simulated_length"))
            ),
            "position": pandera.Column(
                "int32", pandera.Check.ge(0), description="training-time-test step; 0 otherwise"
            ),
            "value": pandera.Column(float, nullable=False),
        }
    ),
)

SIMULATED = Contract(
    "simulated",
    pa.schema(
        [
            pa.field("group", pa.string(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("sequences", pa.int32(), nullable=False),
            pa.field("survived", _COUNT_LIST, nullable=False),
            pa.field("chains", _COUNT_LIST, nullable=False),
            pa.field("length", pa.float64(), nullable=False),
            pa.field("low", pa.float64(), nullable=False),
            pa.field("high", pa.float64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "group": pandera.Column(str, pandera.Check.isin(("all", "dataset", "context"))),
            "name": pandera.Column(str, description="the dataset, or the range of tokens before the first guess"),
            "sequences": pandera.Column("int32", pandera.Check.ge(1)),
            "length": pandera.Column(float, pandera.Check.ge(1), description="1 + Σ survived / chains"),
            "low": pandera.Column(float, description="lower end of the 95 % interval, by sequences"),
            "high": pandera.Column(float),
        },
        checks=[
            pandera.Check(lambda f: f["survived.length"] == f["chains.length"], name="one_count_per_position"),
            pandera.Check(lambda f: f["low"] <= f["high"], name="interval_in_order"),
        ],
    ),
)

ACCEPTANCE = Contract(
    "acceptance",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("drafter", pa.string(), nullable=False),
            pa.field("temperature", pa.float64(), nullable=False),
            pa.field("chain", pa.int32(), nullable=False),
            pa.field("output_ids", _COUNT_LIST, nullable=False),
            pa.field("verify_steps", pa.int32(), nullable=False),
            pa.field("drafted", pa.int32(), nullable=False),
            pa.field("accepted", pa.int32(), nullable=False),
            pa.field("accepted_by_position", _COUNT_LIST, nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "drafter": pandera.Column(str, pandera.Check.isin(DRAFTERS)),
            "temperature": pandera.Column(float, pandera.Check.ge(0)),
            "chain": pandera.Column("int32", pandera.Check.ge(0), description="tokens drafted per verify step"),
            "output_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "verify_steps": pandera.Column(
                "int32", pandera.Check.ge(0), description="target forwards after the prefill"
            ),
            "drafted": pandera.Column("int32", pandera.Check.ge(0)),
            "accepted": pandera.Column("int32", pandera.Check.ge(0)),
        },
        checks=[
            pandera.Check(lambda f: f["accepted"] <= f["drafted"], name="accepted_within_drafted"),
            pandera.Check(lambda f: f["accepted_by_position.length"] == f["chain"], name="one_count_per_position"),
        ],
    ),
)
