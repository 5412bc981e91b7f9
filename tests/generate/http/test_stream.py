"""Events are the same however the bytes come, and amount to the body that would have come whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.generate.http.stream import CumulativeCollector, DeltaCollector, EventReader, StreamBroken


def events(raw: bytes, cuts: list[int] | None = None) -> list[str]:
    """The events of bytes that come in parts, cut at these places."""
    reader, found, start = EventReader(), [], 0
    for stop in [*sorted(cuts or []), len(raw)]:
        found += reader.feed(raw[start:stop])
        start = stop
    return found + reader.close()


def collected(raw: str) -> dict[str, Any]:
    collector = DeltaCollector()
    for event in events(raw.encode()):
        collector.add(event)
    return collector.body()


LINE_END = st.sampled_from(["\n", "\r\n", "\r"])
DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A stream with comments, other fields and any line ends, and the events in it."""
    raw, expected = draw(st.sampled_from(["", "\ufeff"])), []
    for _ in range(draw(st.integers(0, 5))):
        end = draw(LINE_END)
        lines = draw(st.lists(DATA, min_size=1, max_size=3))
        raw += draw(st.sampled_from(["", f": PROCESSING{end}{end}", f"event: message{end}", f"id: 1{end}"]))
        space = draw(st.booleans()) or any(line.startswith(" ") for line in lines)
        raw += "".join(f"data:{' ' if space else ''}{line}{end}" for line in lines) + end
        expected.append("\n".join(lines))
    return raw.encode(), expected


@given(streams(), st.data())
def test_events_do_not_depend_on_where_the_bytes_are_cut(stream: tuple[bytes, list[str]], data: st.DataObject) -> None:
    raw, expected = stream
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
    assert events(raw, cuts) == events(raw, list(range(len(raw)))) == expected


def test_comments_are_no_events_and_the_space_after_data_may_be_missing() -> None:
    raw = ': OPENROUTER PROCESSING\n\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n'
    assert events(raw.encode()) == ['{"choices":[{"delta":{"content":"a"}}]}', "[DONE]"]
    assert events(raw.replace("data: ", "data:").encode()) == ['{"choices":[{"delta":{"content":"a"}}]}', "[DONE]"]


def test_an_error_in_the_middle_is_what_the_stream_amounts_to() -> None:
    raw = (
        'data: {"choices":[{"delta":{"content":"par"}}]}\n\n'
        'data: {"error":{"code":429,"message":"x"},'
        '"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}\n'
    )
    assert collected(raw)["error"] == {"code": 429, "message": "x"}


@pytest.mark.parametrize("raw", ["", "data: [DONE]\n\n", 'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'])
def test_a_stream_without_an_end_of_its_answer_is_broken(raw: str) -> None:
    with pytest.raises(StreamBroken, match="before its answer"):
        collected(raw)


@pytest.mark.parametrize("raw", ["data: {\n\n", "data: []\n\n", 'data: {"choices":[null]}\n\n'])
def test_what_is_no_event_breaks_the_stream(raw: str) -> None:
    with pytest.raises(StreamBroken):
        collected(raw)


def test_bytes_that_are_no_text_break_the_stream() -> None:
    with pytest.raises(StreamBroken, match="UTF-8"):
        events(b"data: \xff\n\n")


def delta(**fields: Any) -> str:
    return "data: " + json.dumps({"id": "g", "choices": [{"index": 0, "delta": fields}]}) + "\n\n"


END = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'


@given(st.lists(st.sampled_from(["{", '"a":', "1", "}", ""]), max_size=8))
def test_the_pieces_of_tool_calls_are_put_together(pieces: list[str]) -> None:
    raw = delta(tool_calls=[{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}])
    raw += "".join(delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces)
    raw += delta(tool_calls=[{"index": 1, "id": "c1", "type": "function", "function": {"name": "g"}}])
    calls = collected(raw + END)["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "".join(pieces)}},
        {"id": "c1", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]


def test_parts_of_reasoning_keep_their_kinds() -> None:
    raw = delta(reasoning_details=[{"type": "reasoning.text", "text": "a", "index": 0}])
    raw += delta(reasoning_details=[{"type": "reasoning.text", "text": "b", "index": 0, "signature": "s"}])
    raw += delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "index": 1}])
    assert collected(raw + END)["choices"][0]["message"]["reasoning_details"] == [
        {"type": "reasoning.text", "text": "ab", "index": 0, "signature": "s"},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
    ]


def test_an_answer_whose_usage_did_not_come_is_still_whole() -> None:
    body = collected(delta(content="a") + 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    assert body["choices"][0]["message"]["content"] == "a"
    assert "usage" not in body


def test_only_the_last_cumulative_event_counts() -> None:
    collector = CumulativeCollector()
    for ids in ([1], [1, 2], [1, 2, 3]):
        reason = {"type": "length"} if len(ids) == 3 else None
        meta = {"finish_reason": reason, "completion_tokens": len(ids)}
        collector.add(json.dumps({"output_ids": ids, "meta_info": meta}))
    collector.add("[DONE]")
    assert collector.body()["output_ids"] == [1, 2, 3]


def test_events_that_are_not_cumulative_name_the_flag() -> None:
    collector = CumulativeCollector()
    meta = {"finish_reason": {"type": "stop"}, "completion_tokens": 3}
    collector.add(json.dumps({"output_ids": [3], "meta_info": meta}))
    with pytest.raises(StreamBroken, match="incremental-streaming-output"):
        collector.body()
