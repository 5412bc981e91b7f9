"""Response bodies as SGLang, vLLM and OpenRouter write them, whole and as streams of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.servers.account import MICROS, Generation
from tests.servers.answers import Answer

ReasoningField = str  # "reasoning", "reasoning_content", "reasoning_details", or "all"
_CREATED = 1_790_000_000


@dataclass(frozen=True)
class Made:
    """An answer and what was billed for it."""

    answer: Answer
    generation: Generation
    request: dict[str, Any]
    flavour: str  # "openrouter", "vllm" or "sglang"
    reasoning_field: ReasoningField
    quantization: str = ""

    def usage(self) -> dict[str, Any]:
        """What OpenAI's dialect says was used, with OpenRouter's cost where it is OpenRouter."""
        bill = self.generation
        usage: dict[str, Any] = {
            "prompt_tokens": bill.prompt_tokens,
            "completion_tokens": bill.completion_tokens,
            "total_tokens": bill.prompt_tokens + bill.completion_tokens,
        }
        if self.answer.reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": len(self.answer.reasoning)}
        if self.flavour == "openrouter":
            usage |= {"cost": bill.micros / MICROS, "is_byok": False}
        return usage

    def frame(self, kind: str) -> dict[str, Any]:
        """What is the same in the body and in each event."""
        frame: dict[str, Any] = {
            "id": self.generation.id,
            "object": kind,
            "created": _CREATED,
            "model": self.generation.model,
        }
        if self.flavour == "openrouter":
            suffix = f" ({self.quantization})" if self.quantization else ""
            frame["provider"] = self.generation.provider + suffix
        return frame

    @property
    def wants_ids(self) -> bool:
        """Whether the request asked for token ids and this server knows them."""
        return self.flavour != "openrouter" and bool(self.request.get("return_token_ids"))


def generate_body(made: Made, tokens: int | None = None) -> dict[str, Any]:
    """SGLang's /generate; with `tokens`, the event of a stream that has come so far (its text is cumulative)."""
    answer = made.answer
    ids = answer.ids[:tokens]
    ended = tokens is None or tokens >= len(answer.ids)
    reason: dict[str, Any] | None = None
    if ended:
        reason = {"type": answer.finish_reason}
        reason |= {"matched": answer.ids[-1]} if answer.finish_reason == "stop" else {"length": len(answer.ids)}
    return {
        "text": "".join(answer.content[: len(ids)]),
        "output_ids": ids,
        "meta_info": {
            "id": made.generation.id,
            "finish_reason": reason,
            "prompt_tokens": made.generation.prompt_tokens,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "default",
            "e2e_latency": 0.01,
        },
    }


def chat_body(made: Made) -> dict[str, Any]:
    """OpenAI's /chat/completions."""
    message = {"role": "assistant", "content": made.answer.text}
    if made.answer.reasoning is not None:
        message |= _reasoning(made.answer.reasoning_text or "", made.reasoning_field)
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": made.answer.finish_reason}
    body = made.frame("chat.completion") | {"choices": [choice], "usage": made.usage()}
    if made.flavour == "openrouter":
        choice["native_finish_reason"] = made.answer.finish_reason
    if made.wants_ids:
        choice["response_token_ids" if made.flavour == "sglang" else "token_ids"] = made.answer.ids
        if made.flavour == "vllm":
            body["prompt_token_ids"] = made.answer.prompt_ids
        elif made.request.get("return_prompt_token_ids"):
            choice["prompt_token_ids"] = made.answer.prompt_ids
    return body


def completion_body(made: Made) -> dict[str, Any]:
    """OpenAI's /completions."""
    choice: dict[str, Any] = {"index": 0, "text": made.answer.text, "finish_reason": made.answer.finish_reason}
    if made.wants_ids:
        choice |= {"token_ids": made.answer.ids, "prompt_token_ids": made.answer.prompt_ids}
    return made.frame("text_completion") | {"choices": [choice], "usage": made.usage()}


def generate_events(made: Made) -> Iterator[dict[str, Any]]:
    """Cumulative events of /generate, five tokens at a time."""
    for tokens in range(5, len(made.answer.ids) + 5, 5):
        yield generate_body(made, tokens)


def chat_events(made: Made) -> Iterator[dict[str, Any]]:
    """Deltas of /chat/completions, then the reason, then the usage."""
    frame = made.frame("chat.completion.chunk")
    first = frame | {"choices": [_delta({"role": "assistant", "content": ""})]}
    if made.wants_ids and made.flavour == "vllm":
        first["prompt_token_ids"] = made.answer.prompt_ids
    yield first
    ids = list(made.answer.ids)
    for word in made.answer.reasoning or ():
        yield frame | {"choices": [_delta(_reasoning(word, made.reasoning_field), _taken(made, ids, 1))]}
    for word in made.answer.content:
        yield frame | {"choices": [_delta({"content": word}, _taken(made, ids, 1))]}
    last = _delta({}, _taken(made, ids, len(ids))) | {"finish_reason": made.answer.finish_reason}
    if made.flavour == "openrouter":
        last["native_finish_reason"] = made.answer.finish_reason
    yield frame | {"choices": [last]}
    if made.flavour == "openrouter" or (made.request.get("stream_options") or {}).get("include_usage"):
        yield frame | {"choices": [], "usage": made.usage()}


def completion_events(made: Made) -> Iterator[dict[str, Any]]:
    """Deltas of /completions."""
    frame = made.frame("text_completion")
    ids = list(made.answer.ids)
    for position, word in enumerate([*made.answer.content, ""]):
        ended = position == len(made.answer.content)
        choice: dict[str, Any] = {
            "index": 0,
            "text": word,
            "finish_reason": made.answer.finish_reason if ended else None,
        }
        choice |= _taken(made, ids, len(ids) if ended else 1)
        if made.wants_ids and position == 0:
            choice["prompt_token_ids"] = made.answer.prompt_ids
        yield frame | {"choices": [choice]}
    if (made.request.get("stream_options") or {}).get("include_usage"):
        yield frame | {"choices": [], "usage": made.usage()}


def _delta(delta: dict[str, Any], more: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": None, **(more or {})}


def _taken(made: Made, ids: list[int], count: int) -> dict[str, Any]:
    """The next ids of a stream, if the request wants any."""
    taken, ids[:count] = ids[:count], []
    return {"token_ids": taken} if made.wants_ids and made.flavour == "vllm" else {}


def _reasoning(text: str, name: ReasoningField) -> dict[str, Any]:
    details = [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}]
    fields = {"reasoning": text, "reasoning_content": text, "reasoning_details": details}
    return fields if name == "all" else {name: fields[name]}
