"""The target's tokenizer and chat template: messages in, exactly the ids that the served model would get out.

The template is rendered by transformers' own renderer, but without a tokenizer object: what Kimi's Python tokenizer
adds to the template's variables (`tools_ts_str`) is made here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from schemas.errors import TargetError, TemplateRefused
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.formats.codec import Codec, load_codec
from tasks.target.place import target_folder
from tasks.target.typescript import TOOLS_VARIABLE, typescript_tools

# Set by the renderer itself, so a recipe cannot: messages, tools and where the answer begins.
_RENDERED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_GLOBALS = frozenset(
    {"raise_exception", "strftime_now", "dict", "namespace", "range", "lipsum", "cycler", "joiner", "caller"}
)
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NONE: Mapping[str, str] = MappingProxyType({})
_PROBE_ARGUMENTS = '{"probe":1}'

_lock = threading.Lock()
_templates: dict[str, Template] = {}


class Template(NamedTuple):
    """A chat template, and the named tokens that it may write (`bos_token` and others)."""

    text: str
    tokens: Mapping[str, str]


def load_codec_of(target: Shards, target_spec: TargetSpec) -> Codec:
    """The codec of a prepared target, loaded once per process.

    Raises:
        TargetError: the target's files are missing or were changed.
        TokenFormatError: the target's tokenizer cannot give exact ids.
    """
    return load_codec(target_folder(target, target_spec))


def load_template_of(target: Shards, target_spec: TargetSpec) -> Template:
    """The chat template of a prepared target, read once per process.

    Raises:
        TargetError: the target's files are missing or were changed.
    """
    digest = target.digest()
    with _lock:
        if digest not in _templates:
            _templates[digest] = load_template(target_folder(target, target_spec))
        return _templates[digest]


def render_request(target: Shards, target_spec: TargetSpec, request: str | Mapping[str, Any]) -> list[int]:
    """The ids of a request (canonical JSON with `messages` and perhaps `tools`) up to where the answer begins.

    The template writes the control tokens itself, so nothing adds them again.

    Raises:
        TemplateRefused: the chat template raised for these messages.
        TargetError: the target's files are missing or were changed.
    """
    sent: Mapping[str, Any] = json.loads(request) if isinstance(request, str) else request
    template = load_template_of(target, target_spec)
    switches = target.facts["template_switches"]
    text = render_text(template.text, sent["messages"], sent.get("tools"), switches, template.tokens, chat=True)
    return load_codec_of(target, target_spec).encode_prompt([text])[0]


def render_text(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    switches: Mapping[str, bool | str],
    tokens: Mapping[str, str] = _NONE,
    chat: bool = False,
) -> str:
    """The text of a conversation up to where the assistant's answer begins, as transformers renders it.

    A null content is rendered as the empty string (some templates would write "None"), and reasoning is there under
    every name that templates read. Tools are declared in OpenAI's order of keys, and for Kimi in TypeScript too.

    Templates take a call's arguments as text, as a mapping, or either. Where this one leaves the choice, it is the
    text, so that history is what was sampled; chat servers (vLLM, SGLang) make it a mapping first, so that history is
    what the template writes of it.

    Args:
        template: Jinja.
        messages: OpenAI's, whose calls have their arguments as a string.
        tools: declarations, or None.
        switches: the template's variables.
        tokens: named tokens that the template may write.
        chat: render as a chat server does that is sent the messages.

    Raises:
        TemplateRefused: the chat template raised for these messages, or has no place for the tools.
    """
    variables: dict[str, Any] = {**tokens, **switches}
    if tools:
        read = _check_tools(template)
        if TOOLS_VARIABLE in read and TOOLS_VARIABLE not in switches:
            variables[TOOLS_VARIABLE] = typescript_tools(tools)
        tools = [_in_order(tool) for tool in tools]
    calls = any(message.get("tool_calls") for message in messages)
    parsed = calls and (_takes(template, text=False) if chat else not _takes(template, text=True))
    return _render(template, [_prepared(message, parsed) for message in messages], tools, variables)


def load_template(folder: Path) -> Template:
    """The chat template of a Hugging Face folder: chat_template.jinja, else what the tokenizer's settings hold.

    Raises:
        TargetError: there is none, or a file is damaged.
    """
    settings = _read_json(folder / "tokenizer_config.json")
    named = {**_read_json(folder / "special_tokens_map.json"), **settings}
    tokens = {name: _token_text(named[name]) for name in _NAMED_TOKENS if named.get(name)}
    own_file = folder / "chat_template.jinja"
    found: Any = settings.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if own_file.is_file():
        try:
            found = own_file.read_bytes().decode()  # bytes: reading as text would rewrite the newlines
        except UnicodeDecodeError as exc:
            raise TargetError(f"{own_file} is damaged: it is not UTF-8 ({exc}); fetch it anew") from exc
    if isinstance(found, list):
        raise TargetError(
            f"the tokenizer in {folder} has {len(found)} chat templates, and it is not clear which one is served: put "
            "that one into chat_template.jinja there"
        )
    if not found:
        raise TargetError(
            f"the tokenizer in {folder} has no chat template: use an instruction-tuned model, or put its template "
            "into chat_template.jinja there"
        )
    return Template(found, tokens)


def template_variables(template: Template) -> frozenset[str]:
    """The switches that a template reads.

    Raises:
        TargetError: the template is not valid Jinja.
    """
    from jinja2 import TemplateSyntaxError

    try:
        read = _read_by(template.text)
    except TemplateSyntaxError as exc:
        raise TargetError(f"the chat template is not valid Jinja: {exc}") from exc
    return read - _RENDERED - _GLOBALS - frozenset(_NAMED_TOKENS)


def _check_tools(template: str) -> frozenset[str]:
    """All variables that a template reads, of which the tools must be one."""
    from jinja2 import TemplateError

    try:
        read = _read_by(template)
    except TemplateError as exc:
        raise TemplateRefused(f"the chat template is not valid Jinja: {exc}") from exc
    if "tools" not in read:
        raise TemplateRefused(
            "the request declares tools, and the chat template never writes them: the target would not know of them"
        )
    return read


@lru_cache(maxsize=16)
def _read_by(template: str) -> frozenset[str]:
    """All variables that a template reads."""
    from transformers.utils import chat_template_utils

    return chat_template_utils._get_template_variables(template)  # noqa: SLF001 (pinned)


def _render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> str:
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            conversations=[[dict(message) for message in messages]],
            tools=[dict(tool) for tool in tools] if tools else None,
            chat_template=template,
            add_generation_prompt=True,
            **variables,
        )
    except (TemplateError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise TemplateRefused(f"the chat template refused the messages: {exc}") from exc
    return rendered[0]


def _prepared(message: Mapping[str, Any], parsed: bool) -> dict[str, Any]:
    """A message as the template is given it: no nulls, and the arguments of calls parsed if it wants them so."""
    prepared = {name: value for name, value in message.items() if value is not None}
    prepared.setdefault("content", "")
    if parsed and (calls := prepared.get("tool_calls")):
        prepared["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _parsed(call["function"]["arguments"])}}
            for call in calls
        ]
    return prepared


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError as exc:
        raise TemplateRefused(
            f"the chat template takes parsed arguments only, and {arguments[:80]!r} is not JSON: {exc}"
        ) from exc


def _in_order(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A declaration with its keys in OpenAI's order, in which servers write them."""
    ordered = {name: tool[name] for name in ("type", "function") if name in tool} | dict(tool)
    if isinstance(function := ordered.get("function"), Mapping):
        first = {name: function[name] for name in ("name", "description", "parameters") if name in function}
        ordered["function"] = first | dict(function)
    return ordered


@lru_cache
def _takes(template: str, text: bool) -> bool:
    """Whether the template writes a call's arguments: character by character if they are text, or as a mapping."""
    arguments = _PROBE_ARGUMENTS if text else json.loads(_PROBE_ARGUMENTS)
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": call["id"], "content": "1"},
    ]
    try:
        written = _render(template, messages, None, {})
    except TemplateRefused:
        return False
    return not text or _PROBE_ARGUMENTS in written


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as exc:
        raise TargetError(f"{path} is damaged: {exc}") from exc
    if not isinstance(content, dict):
        raise TargetError(f"{path} is damaged: it is no JSON object")
    return content


def _token_text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token
