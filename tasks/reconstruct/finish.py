"""How an answer ended: what servers call it, in our three words, and what its ids and counts say against it.

vLLM reports `tool_calls` or `stop` for some answers that were cut at the limit. So an answer with a natural end that
fills its `max_tokens` is looked at twice: ids without an end id are a cut; of text, the billed count decides.
"""

from __future__ import annotations

from schemas.answers import NATURAL_STOPS
from tasks.formats.format import Fault

CUT = "length"

_OURS = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": CUT,
    "max_tokens": CUT,
}


def named_end(finish_reason: str | None, ended_by_id: bool) -> str | Fault:
    """How an answer ended, in the words of SEQUENCES.

    Args:
        finish_reason: as returned.
        ended_by_id: the returned ids are there, and the last one ends a turn.
    """
    if finish_reason is None:
        if ended_by_id:
            return "stop"
        return Fault("finish_reason_missing", "the server did not say how the answer ended, nor do ids show it")
    if finish_reason not in _OURS:
        known = ", ".join(_OURS)
        return Fault("unknown_finish_reason", f"finish_reason is {finish_reason!r}; known are {known}")
    return _OURS[finish_reason]


def fills_limit(
    finish: str, max_tokens: int | None, completion_tokens: int | None, reasoning_tokens: int | None
) -> bool:
    """Whether an answer that is said to have ended by itself may have been cut at its limit."""
    if finish not in NATURAL_STOPS or max_tokens is None or completion_tokens is None:
        return False
    return completion_tokens + (reasoning_tokens or 0) >= max_tokens
