"""An answer's body as a row of ANSWERS, as history for the next turn, or as a fault; the same whenever it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.formats.arguments import json_arguments
from tasks.formats.format import Fault, Reply, Said, ToolCall
from tasks.generate.engine import Answer
from tasks.generate.history import canonical_text
from tasks.generate.http.facts import Facts
from tasks.generate.paid import AnswerMeta
from tasks.generate.serve.job import Job
from tasks.generate.turns import Asked, Turns
from tasks.responses import Asked as AskedOf
from tasks.responses import Response, answer_row, read_response

NOT_ALLOWED = "answer_not_allowed"  # by another provider, quantization or model than was asked for


@dataclass(frozen=True)
class Read:
    """One answer, read and judged."""

    asked: Asked
    said: Response | Fault
    meta: AnswerMeta
    max_tokens: int

    def row(self, engine: str) -> dict[str, Any]:
        """As a row of ANSWERS; only of an answer that is no fault."""
        assert isinstance(self.said, Response)
        prompt = self.asked.prompt
        of = AskedOf(
            prompt.prompt_id,
            prompt.dataset,
            canonical_text(self.asked.request),
            engine,
            self.asked.root_id,
            self.max_tokens,
            model=self.meta.model,
            quantization=self.meta.quantization,
        )
        return answer_row(replace(self.said, provider=self.meta.provider), of)

    def has_reasoning(self) -> bool:
        """Whether the answer reasons, as far as its text shows it."""
        return isinstance(self.said, Response) and bool(self.said.reasoning or "</think>" in (self.said.content or ""))


def read(job: Job, asked: Asked, meta: AnswerMeta, body: bytes | Mapping[str, Any], max_tokens: int) -> Read:
    """Judge a body by itself and by who made it."""
    facts = Facts(meta.provider, meta.model, meta.quantization)
    if objection := job.objection(facts, meta.quantization):
        return Read(asked, Fault(NOT_ALLOWED, objection), meta, max_tokens)
    said = read_response(body)
    if isinstance(said, Response) and job.sends_ids and said.prompt_ids is None:
        said = replace(said, prompt_ids=list(asked.prompt.ids))  # what was sent is what it saw
    return Read(asked, said, meta, max_tokens)


def take(job: Job, turns: Turns, answer: Read) -> None:
    """Make an answer the history of the turns after it, if there are any."""
    prompt, said = answer.asked.prompt, answer.said
    if not turns.has_followers(prompt.prompt_id):
        return None
    if isinstance(said, Fault):
        turns.take(prompt.prompt_id, said)
    elif said.tool_calls is not None and said.output_ids is None:
        turns.take(prompt.prompt_id, _reply_of_calls(said))
    else:
        ids = said.output_ids if said.output_ids is not None else _likeliest_ids(job, answer)
        if isinstance(ids, Fault):
            return turns.take(prompt.prompt_id, ids)
        text, reason = said.content or "", said.finish_reason or "stop"
        turns.settle([Answer(prompt.prompt_id, ids, text, reason, answer.max_tokens, len(prompt.ids), len(ids))])
    return None


def count_ids(job: Job, said: Response) -> int:
    """Ids of an answer whose server did not count them."""
    if said.output_ids is not None:
        return len(said.output_ids)
    texts = [text for text in (said.reasoning, said.content, said.tool_calls) if text]
    return sum(map(len, job.means.codec.encode(texts))) + len(texts)  # an end or a marker after each


def _reply_of_calls(said: Response) -> Reply | Fault:
    """An answer whose tool calls the server has parsed."""
    try:
        calls = [
            ToolCall(
                call["function"]["name"],
                json_arguments(call["function"]["arguments"], {}),
                call.get("id") or f"call_{place}",
            )
            for place, call in enumerate(json.loads(said.tool_calls or "[]"))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        return Fault("tool_call_unreadable", f"{exc!r} in {said.tool_calls!r:.200}")
    return Reply(said.reasoning or "", said.content or "", tuple(calls))


def _likeliest_ids(job: Job, answer: Read) -> list[int] | Fault:
    """Ids of an answer that came as text: a history needs only its parts, so that the likeliest reading will do."""
    said, means = answer.said, job.means
    assert isinstance(said, Response)
    opening = means.token_format.opening(np.asarray(answer.asked.prompt.ids, dtype=np.int32))
    ended = said.finish_reason != "length"
    readings = means.token_format.readings(Said(said.reasoning, said.content, ended), opening)
    if isinstance(readings, Fault):
        return readings
    ids: list[int] = []
    for part in readings[0].parts:
        ids += [part] if isinstance(part, int) else means.codec.encode([part])[0]
    return ids
