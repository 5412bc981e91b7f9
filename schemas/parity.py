"""Guesses of a draft that are right, from each place of an answer: what every engine should have counted."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

AS_CONFIGURED = "as configured"

SURVIVALS = Contract(
    "survivals",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("variant", pa.string(), nullable=False),
            pa.field("steps", pa.int32(), nullable=False),
            pa.field("prompt_ids", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
            pa.field("output_ids", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
            pa.field("survived", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "variant": pandera.Column(
                str, pandera.Check.str_length(min_value=1), description="how the draft was wired to the target"
            ),
            "steps": pandera.Column("int32", pandera.Check.ge(1), description="guesses per chain"),
            "output_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
        },
        checks=pandera.Check(
            lambda f: f["survived.length"] == f["output_ids.length"] - 1, name="one_survival_per_place_but_the_last"
        ),
    ),
)
