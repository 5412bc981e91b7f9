"""Answers as an engine returned them, and the exact token sequences rebuilt from them."""

import pandera.pandas as pandera
import pyarrow as pa

from schemas.contract import Contract

PROVENANCES = ("returned", "reconstructed")
NATURAL_STOPS = ("stop", "tool_calls")  # the model itself ended the turn
SEQUENCE_ENDS = (*NATURAL_STOPS, "length")

# Why rebuilt and billed ids differ, or that they do not. Rows of all classes but the first two are quarantined.
DELTA_MEANINGS = {
    "exact": "as many ids as were billed",
    "unverified": "no count came, and the answer can be read in one way only",
    "trimmed_whitespace": "white space that the server took away would make up the difference, or would not show in it",
    "padded_markers": "the server put spaces round the markers",
    "parsed_tool_calls": "the server parsed the calls out of the text and sent no ids",
    "missing_close_before_tools": "the reasoning was closed before its tool section, or was not",
    "cut_inside_character": "a limit cut the answer inside a character",
    "not_nfc": "the text is not in NFC, and may not be what was sampled",
    "marker_text_in_answer": "a marker in the text was sampled as text or as its id",
    "long_run": "a word or white space of more than 25,000 characters",
    "reasoning_not_returned": "reasoning was billed and did not come, or stands in the text without its end",
    "not_canonical": "nothing else fits, and the count is nearly right: other ids of the same text were sampled",
    "unexplained": "none of these",
}
DELTA_CLASSES = tuple(DELTA_MEANINGS)

_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
_PROMPT_ID = pandera.Check.str_matches(r"^[0-9a-f]{32}$")


def _text(nullable: bool = False, description: str = "") -> pandera.Column:
    return pandera.Column(str, nullable=nullable, description=description)


def _count(nullable: bool = False, least: int = 0, description: str = "") -> pandera.Column:
    # a column of integers with nulls reaches pandas as floats
    return pandera.Column(float, pandera.Check.ge(least), nullable=nullable, coerce=True, description=description)


ANSWERS = Contract(
    "answers",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("root_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("request", pa.string(), nullable=False),
            pa.field("prompt_ids", _IDS, nullable=True),
            pa.field("output_ids", _IDS, nullable=True),
            pa.field("reasoning", pa.string(), nullable=True),
            pa.field("content", pa.string(), nullable=True),
            pa.field("tool_calls", pa.string(), nullable=True),
            pa.field("finish_reason", pa.string(), nullable=True),
            pa.field("max_tokens", pa.int32(), nullable=True),
            pa.field("prompt_tokens", pa.int32(), nullable=True),
            pa.field("completion_tokens", pa.int32(), nullable=True),
            pa.field("reasoning_tokens", pa.int32(), nullable=True),
            pa.field("engine", pa.string(), nullable=False),
            pa.field("provider", pa.string(), nullable=True),
            pa.field("model", pa.string(), nullable=True),
            pa.field("quantization", pa.string(), nullable=True),
            pa.field("response_id", pa.string(), nullable=True),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, _PROMPT_ID, unique=True),
            "root_id": pandera.Column(str, _PROMPT_ID, description="prompt_id of the conversation's first turn"),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "request": pandera.Column(
                str, pandera.Check.str_startswith("{"), description="canonical JSON: messages and tools as sent"
            ),
            "prompt_ids.length": _count(nullable=True, description="as the engine saw them; null if it did not say"),
            "output_ids.length": _count(nullable=True, description="as sampled; null if the engine returned text only"),
            "reasoning": _text(nullable=True, description="text before the close marker, as returned"),
            "content": _text(nullable=True, description="text after it, or the whole answer, as returned"),
            "tool_calls": _text(nullable=True, description="calls that the server parsed out of the text, JSON"),
            "finish_reason": _text(nullable=True, description="as returned"),
            "max_tokens": _count(nullable=True, least=1, description="limit of the request"),
            "prompt_tokens": _count(nullable=True, description="as the engine counted them"),
            "completion_tokens": _count(nullable=True, description="as billed"),
            "reasoning_tokens": _count(nullable=True, description="as billed, inside or beside completion_tokens"),
            "engine": pandera.Column(str, pandera.Check.str_length(min_value=1)),
        }
    ),
)

SEQUENCES = Contract(
    "sequences",
    pa.schema(
        [
            pa.field("prompt_id", pa.string(), nullable=False),
            pa.field("root_id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("request", pa.string(), nullable=False),
            pa.field("prompt_ids", _IDS, nullable=False),
            pa.field("completion_ids", _IDS, nullable=False),
            pa.field("loss_mask", pa.list_(pa.field("element", pa.int8(), nullable=False)), nullable=False),
            pa.field("answer_text", pa.string(), nullable=True),
            pa.field("provenance", pa.string(), nullable=False),
            pa.field("finish_reason", pa.string(), nullable=False),
            pa.field("max_tokens", pa.int32(), nullable=True),
            pa.field("billed", pa.int32(), nullable=True),
            pa.field("billed_delta", pa.int32(), nullable=True),
            pa.field("delta_class", pa.string(), nullable=False),
            pa.field("token_format", pa.string(), nullable=False),
            pa.field("template_sha256", pa.string(), nullable=False),
            pa.field("template_switches", pa.string(), nullable=False),
            pa.field("engine", pa.string(), nullable=False),
            pa.field("provider", pa.string(), nullable=True),
            pa.field("model", pa.string(), nullable=True),
            pa.field("quantization", pa.string(), nullable=True),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "prompt_id": pandera.Column(str, _PROMPT_ID, unique=True),
            "root_id": pandera.Column(str, _PROMPT_ID, description="prompt_id of the conversation's first turn"),
            "dataset": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "request": pandera.Column(str, pandera.Check.str_startswith("{")),
            "prompt_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "prompt_ids.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "completion_ids.length": pandera.Column(int, pandera.Check.ge(1), coerce=True),
            "completion_ids.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "loss_mask.length": pandera.Column(
                int, pandera.Check.ge(2), coerce=True, description="prompt, then answer"
            ),
            "loss_mask.min": pandera.Column(float, pandera.Check.ge(0), coerce=True),
            "loss_mask.max": pandera.Column(float, pandera.Check.le(1), coerce=True),
            "answer_text": _text(nullable=True, description="text that the ids of the answer must decode to"),
            "provenance": pandera.Column(str, pandera.Check.isin(PROVENANCES)),
            "finish_reason": pandera.Column(str, pandera.Check.isin(SEQUENCE_ENDS)),
            "max_tokens": _count(nullable=True, least=1),
            "billed": _count(nullable=True, description="ids of the answer by the provider's counting rule"),
            "billed_delta": pandera.Column(
                float, pandera.Check.eq(0), nullable=True, coerce=True, description="rebuilt minus billed ids"
            ),
            "delta_class": pandera.Column(str, pandera.Check.isin(DELTA_CLASSES[:2])),
            "token_format": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "template_sha256": pandera.Column(str, pandera.Check.str_matches(r"^([0-9a-f]{64}|unknown)$")),
            "template_switches": pandera.Column(str, pandera.Check.str_startswith("{"), description="canonical JSON"),
            "engine": pandera.Column(str, pandera.Check.str_length(min_value=1)),
        },
        checks=pandera.Check(
            lambda f: f["loss_mask.length"] == f["prompt_ids.length"] + f["completion_ids.length"],
            name="one_mask_entry_per_id",
        ),
    ),
)

PROVIDERS = Contract(
    "providers",
    pa.schema(
        [
            pa.field("provider", pa.string(), nullable=False),
            pa.field("end_counted", pa.bool_(), nullable=False),
            pa.field("reasoning_inside", pa.bool_(), nullable=False),
            pa.field("rule_from", pa.string(), nullable=False),
            pa.field("delta", pa.int32(), nullable=True),
            pa.field("delta_class", pa.string(), nullable=False),
            pa.field("rows", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "provider": pandera.Column(str, pandera.Check.str_length(min_value=1)),
            "end_counted": pandera.Column(bool, description="the end id is among the billed ids"),
            "reasoning_inside": pandera.Column(bool, description="reasoning is inside completion_tokens"),
            "rule_from": pandera.Column(str, pandera.Check.isin(("pinned", "inferred", "default"))),
            "delta": pandera.Column(float, nullable=True, coerce=True, description="rebuilt minus billed ids"),
            "delta_class": pandera.Column(str, pandera.Check.isin(DELTA_CLASSES)),
            "rows": pandera.Column("int64", pandera.Check.ge(1)),
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

DISTRIBUTIONS = Contract(
    "distributions",
    pa.schema(
        [
            pa.field("distribution", pa.string(), nullable=False),
            pa.field("series", pa.string(), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            pa.field("rows", pa.int64(), nullable=False),
        ]
    ),
    pandera.DataFrameSchema(
        {
            "distribution": pandera.Column(str, pandera.Check.str_length(min_value=1), description="what is counted"),
            "series": pandera.Column(str, description="dataset or provider that is counted apart"),
            "key": pandera.Column(str, description="a value; of lengths the least of its bin"),
            "rows": pandera.Column("int64", pandera.Check.ge(1)),
        },
        unique=["distribution", "series", "key"],
    ),
)
