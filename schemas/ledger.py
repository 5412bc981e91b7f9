"""Paid answers as they came, and what every attempt to get one cost; money is whole nano-dollars, so sums are exact."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

OUTCOMES_BILLED = ("yes", "no", "unknown")
VERDICTS = ("agrees", "explained", "differs")

_KEY = pandera.Check.str_matches(r"^[0-9a-f]{64}$")
_NAME = pandera.Check.str_length(min_value=1)


def _count(nullable: bool = True, description: str = "") -> pandera.Column:
    # a column of integers with nulls reaches pandas as floats
    return pandera.Column(float, pandera.Check.ge(0), nullable=nullable, coerce=True, description=description)


PAID_ANSWERS = Contract(
    "paid_answers",
    pa.schema(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("attempt_id", pa.string(), nullable=True),
            pa.field("endpoint", pa.string(), nullable=False),
            pa.field("dialect", pa.string(), nullable=False),
            pa.field("provider", pa.string(), nullable=True),
            pa.field("model", pa.string(), nullable=True),
            pa.field("quantization", pa.string(), nullable=True),
            pa.field("generation_id", pa.string(), nullable=True),
            pa.field("prompt_tokens", pa.int64(), nullable=True),
            pa.field("completion_tokens", pa.int64(), nullable=True),
            pa.field("cost_nanousd", pa.int64(), nullable=True),
            pa.field("received_ms", pa.int64(), nullable=False),
            pa.field("body", pa.large_binary(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "key": pandera.Column(str, _KEY, unique=True, description="SHA-256 of what was asked"),
            "dataset": pandera.Column(str, _NAME),
            "prompt_id": pandera.Column(str, _NAME),
            "attempt_id": pandera.Column(str, nullable=True, description="the reservation it was paid from"),
            "endpoint": pandera.Column(str, _NAME),
            "dialect": pandera.Column(str, _NAME, description="how the body is to be read"),
            "provider": pandera.Column(str, nullable=True),
            "model": pandera.Column(str, nullable=True),
            "quantization": pandera.Column(str, nullable=True),
            "generation_id": pandera.Column(str, nullable=True),
            "prompt_tokens": _count(),
            "completion_tokens": _count(),
            "cost_nanousd": _count(description="as billed, rounded up to nano-dollars"),
            "received_ms": pandera.Column("int64", pandera.Check.ge(0), description="since the epoch"),
            "body.length": _count(nullable=False, description="the response as it came"),
        }
    ),
)

LEDGER = Contract(
    "ledger",
    pa.schema(
        [
            pa.field("attempt_id", pa.string(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("endpoint", pa.string(), nullable=False),
            pa.field("provider", pa.string(), nullable=True),
            pa.field("model", pa.string(), nullable=True),
            pa.field("quantization", pa.string(), nullable=True),
            pa.field("generation_id", pa.string(), nullable=True),
            pa.field("prompt_tokens", pa.int64(), nullable=True),
            pa.field("completion_tokens", pa.int64(), nullable=True),
            pa.field("reasoning_tokens", pa.int64(), nullable=True),
            pa.field("cost_nanousd", pa.int64(), nullable=True),
            pa.field("worst_nanousd", pa.int64(), nullable=False),
            pa.field("billed", pa.string(), nullable=False),
            pa.field("estimated", pa.bool_(), nullable=False),
            pa.field("retry", pa.int32(), nullable=False),
            pa.field("outcome", pa.string(), nullable=False),
            pa.field("detail", pa.string(), nullable=False),
            pa.field("status", pa.int32(), nullable=True),
            pa.field("latency_ms", pa.int64(), nullable=False),
            pa.field("started_ms", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "attempt_id": pandera.Column(str, _NAME, description="its reservation in the budget"),
            "key": pandera.Column(str, _KEY, description="SHA-256 of what was asked"),
            "dataset": pandera.Column(str, _NAME),
            "endpoint": pandera.Column(str, _NAME),
            "provider": pandera.Column(str, nullable=True),
            "model": pandera.Column(str, nullable=True),
            "quantization": pandera.Column(str, nullable=True),
            "generation_id": pandera.Column(str, nullable=True, description="finds the bill of an unknown answer"),
            "prompt_tokens": _count(),
            "completion_tokens": _count(),
            "reasoning_tokens": _count(description="inside or beside completion_tokens, as the provider has it"),
            "cost_nanousd": _count(description="null where nobody knows it yet"),
            "worst_nanousd": pandera.Column("int64", pandera.Check.ge(0), description="what was reserved for it"),
            "billed": pandera.Column(str, pandera.Check.isin(OUTCOMES_BILLED)),
            "estimated": pandera.Column(bool, description="tokens or cost were not given, but counted by us"),
            "retry": pandera.Column("int32", pandera.Check.ge(0), description="0 is the first attempt"),
            "outcome": pandera.Column(str, _NAME, description="answered, cancelled, or the kind of what went wrong"),
            "detail": pandera.Column(str),
            "status": pandera.Column(float, nullable=True, coerce=True, description="of HTTP, if there was one"),
            "latency_ms": pandera.Column("int64", pandera.Check.ge(0)),
            "started_ms": pandera.Column("int64", pandera.Check.ge(0), description="since the epoch"),
        },
        checks=[
            pandera.Check(
                lambda f: (f["billed"] == "unknown") | f["cost_nanousd"].notna(), name="known_bills_have_a_cost"
            ),
            pandera.Check(
                lambda f: (f["billed"] != "no") | (f["cost_nanousd"] == 0), name="what_is_not_billed_costs_nothing"
            ),
        ],
    ),
)

ACCOUNT = Contract(
    "account",
    pa.schema(
        [
            pa.field("start_ms", pa.int64(), nullable=False),
            pa.field("end_ms", pa.int64(), nullable=False),
            pa.field("killed", pa.bool_(), nullable=False),
            pa.field("account_nanousd", pa.int64(), nullable=False),
            pa.field("ledger_nanousd", pa.int64(), nullable=False),
            pa.field("estimated_nanousd", pa.int64(), nullable=False),
            pa.field("unknown_nanousd", pa.int64(), nullable=False),
            pa.field("verdict", pa.string(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "start_ms": pandera.Column("int64", pandera.Check.ge(0), description="reading before anything was asked"),
            "end_ms": pandera.Column("int64", pandera.Check.ge(0), description="reading afterwards"),
            "killed": pandera.Column(bool, description="ended by a kill: up to the next run's first reading"),
            "account_nanousd": pandera.Column("int64", description="spent between them by the provider's account"),
            "ledger_nanousd": pandera.Column("int64", pandera.Check.ge(0), description="spent by the ledger"),
            "estimated_nanousd": pandera.Column("int64", pandera.Check.ge(0), description="of it, counted by us"),
            "unknown_nanousd": pandera.Column(
                "int64", pandera.Check.ge(0), description="most that attempts of unknown bill cost beside it"
            ),
            "verdict": pandera.Column(
                str,
                pandera.Check.isin(VERDICTS),
                description="equal to the cent; explained by estimates and unknown bills; or neither",
            ),
        },
        checks=pandera.Check(lambda f: f["start_ms"] <= f["end_ms"], name="time_runs_forward"),
    ),
)

DATASETS = Contract(
    "datasets",
    pa.schema(
        [
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("prompts", pa.int64(), nullable=False),
            pa.field("answered", pa.int64(), nullable=False),
            pa.field("quarantined", pa.int64(), nullable=False),
            pa.field("errors", pa.string(), nullable=False),
            pa.field("reasoning_share", pa.float64(), nullable=False),
            pa.field("prompt_tokens", pa.int64(), nullable=False),
            pa.field("completion_tokens", pa.int64(), nullable=False),
            pa.field("mean_answer_tokens", pa.float64(), nullable=False),
            pa.field("cost_nanousd", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "dataset": pandera.Column(str, _NAME, unique=True),
            "prompts": pandera.Column("int64", pandera.Check.ge(0), description="turns to be answered"),
            "answered": pandera.Column("int64", pandera.Check.ge(0)),
            "quarantined": pandera.Column("int64", pandera.Check.ge(0)),
            "errors": pandera.Column(
                str, pandera.Check.str_startswith("{"), description="JSON: attempts that failed, by class"
            ),
            "reasoning_share": pandera.Column(
                "float64", pandera.Check.in_range(0, 1), description="of the answers, those with reasoning"
            ),
            "prompt_tokens": pandera.Column("int64", pandera.Check.ge(0), description="billed, of all attempts"),
            "completion_tokens": pandera.Column("int64", pandera.Check.ge(0), description="billed, of all attempts"),
            "mean_answer_tokens": pandera.Column("float64", pandera.Check.ge(0)),
            "cost_nanousd": pandera.Column("int64", pandera.Check.ge(0), description="billed, of all attempts"),
        },
        checks=pandera.Check(
            lambda f: f["prompts"] == f["answered"] + f["quarantined"], name="every_prompt_has_one_end"
        ),
    ),
)
