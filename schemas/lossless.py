"""Where greedy answers with a drafter differ from those without it, and how samples with and without it compare."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract
from schemas.served import SETTING_COLUMNS, SETTING_FIELDS

KINDS = ("near_tie", "real", "unjudged")

DIFFERENCES = Contract(
    "differences",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            *SETTING_FIELDS,
            pa.field("position", pa.int32(), nullable=False),
            pa.field("plain_token", pa.int32(), nullable=False),
            pa.field("token", pa.int32(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("margin", pa.float64(), nullable=True),
            pa.field("below_best", pa.float64(), nullable=True),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            **SETTING_COLUMNS,
            "position": pandera.Column("int32", pandera.Check.ge(0), description="first one at which answers differ"),
            "plain_token": pandera.Column("int32", pandera.Check.ge(-1), description="-1: the answer has ended"),
            "token": pandera.Column("int32", pandera.Check.ge(-1), description="-1: the answer has ended"),
            "kind": pandera.Column(str, pandera.Check.isin(KINDS)),
            "margin": pandera.Column(
                float, nullable=True, description="the target's score of the plain token less that of the other"
            ),
            "below_best": pandera.Column(
                float, pandera.Check.ge(0), nullable=True, description="the best score less the worse of the two"
            ),
        }
    ),
)

SAMPLES = Contract(
    "samples",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            *SETTING_FIELDS,
            pa.field("output_ids", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            **SETTING_COLUMNS,
            "output_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
        }
    ),
)
