"""What generation will take as its pilot foretells it, and what a person decided about that."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

DECISIONS = ("approve", "stop")

_INTERVALS = ("completion_tokens", "usd", "hours", "bytes")


def _amount(nullable: bool = False, description: str = "") -> pandera.Column:
    return pandera.Column("float64", pandera.Check.ge(0), nullable=nullable, description=description)


def _interval(name: str, description: str) -> dict[str, pandera.Column]:
    nullable = name == "hours"
    return {
        name: _amount(nullable, description),
        f"{name}_low": _amount(nullable, "lower end of the 95 % interval"),
        f"{name}_high": _amount(nullable, "upper end"),
    }


FORECAST = Contract(
    "forecast",
    pa.schema(
        [
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("prompts", pa.int64(), nullable=False),
            pa.field("pilot", pa.int64(), nullable=False),
            pa.field("at_limit", pa.int64(), nullable=False),
            pa.field("prompt_tokens", pa.int64(), nullable=False),
            *(
                pa.field(f"{name}{end}", pa.float64(), nullable=name == "hours")
                for name in _INTERVALS
                for end in ("", "_low", "_high")
            ),
            pa.field("usd_worst", pa.float64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "dataset": pandera.Column(str, unique=True, description="empty for the sum of all"),
            "prompts": pandera.Column("int64", pandera.Check.ge(0), description="turns that are still to be answered"),
            "pilot": pandera.Column("int64", pandera.Check.ge(0), description="answers that the forecast is made from"),
            "at_limit": pandera.Column("int64", pandera.Check.ge(0), description="of these, cut at the limit"),
            "prompt_tokens": pandera.Column("int64", pandera.Check.ge(0)),
            **_interval("completion_tokens", "expected"),
            **_interval("usd", "expected, at what the pilot was billed"),
            **_interval("hours", "expected; null where no attempt was timed"),
            **_interval("bytes", "expected in the store"),
            "usd_worst": _amount(description="if every answer took its limit"),
        },
        checks=[
            pandera.Check(lambda f, name=name: ~(f[f"{name}_low"] > f[f"{name}_high"]), name=f"{name}_low_below_high")
            for name in _INTERVALS
        ],
    ),
)

DECISION = Contract(
    "decision",
    pa.schema(
        [
            pa.field("run", pa.string(), nullable=False),
            pa.field("decision", pa.string(), nullable=False),
            pa.field("cap_nanousd", pa.int64(), nullable=False),
            pa.field("committed_nanousd", pa.int64(), nullable=False),
            pa.field("forecast_usd", pa.float64(), nullable=False),
            pa.field("decided_in", pa.string(), nullable=False),
            pa.field("decided_at", pa.string(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "run": pandera.Column(str, pandera.Check.str_length(min_value=1), description="whose budget it is"),
            "decision": pandera.Column(str, pandera.Check.isin(DECISIONS)),
            "cap_nanousd": pandera.Column(
                "int64",
                pandera.Check.ge(0),
                description="most that the run may spend in all, what came before too",
            ),
            "committed_nanousd": pandera.Column(
                "int64", pandera.Check.ge(0), description="what it had spent and reserved when that was decided"
            ),
            "forecast_usd": _amount(description="what was expected for the rest"),
            "decided_in": pandera.Column(
                str, pandera.Check.isin(("form", "terminal")), description="where a person decided"
            ),
            "decided_at": pandera.Column(str, pandera.Check.str_length(min_value=1), description="ISO 8601, UTC"),
        }
    ),
)
