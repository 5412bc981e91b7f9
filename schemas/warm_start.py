"""What a parent draft reached before any training: per reading of its layer ids, and on the held-out sequences."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

_LAYERS = pa.list_(pa.field("element", pa.int32(), nullable=False))

READINGS = Contract(
    "readings",
    pa.schema(
        [
            pa.field("reading", pa.string(), nullable=False),
            pa.field("aux_layers", _LAYERS, nullable=False),
            pa.field("position", pa.int32(), nullable=False),
            pa.field("chains", pa.int64(), nullable=False),
            pa.field("survived", pa.int64(), nullable=False),
            pa.field("kept", pa.bool_(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "reading": pandera.Column(str, pandera.Check.str_length(min_value=1), description="what the ids mean"),
            "aux_layers.length": pandera.Column(int, pandera.Check.eq(3), coerce=True),
            "aux_layers.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "position": pandera.Column("int32", pandera.Check.ge(0), description="drafted token, 0-based"),
            "chains": pandera.Column("int64", pandera.Check.ge(0)),
            "survived": pandera.Column("int64", pandera.Check.ge(0), description="with all before"),
            "kept": pandera.Column(bool, description="the reading that training goes on with"),
        },
        checks=pandera.Check(lambda f: f["survived"] <= f["chains"], name="survived_within_chains"),
    ),
)
