"""Chat templates that do to reasoning, tools and prompt tails what Kimi's do; by the name of the format."""

from __future__ import annotations

_DEFAULT_SYSTEM = """
{%- if messages[0].role != 'system' -%}
<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>
{%- endif -%}
"""

_TOOLS = """
{%- if tools -%}
<|im_system|>tool_declare<|im_middle|>{{ DECLARED }}<|im_end|>
{%- endif -%}
"""

# The last assistant turn that calls no tool, and all before it, are history: their reasoning is erased.
_MESSAGES = """
{%- set history = namespace(until=-1) -%}
{%- for message in messages if message.role == 'assistant' -%}
  {%- if not message.tool_calls and not KEEP -%}{%- set history.until = messages.index(message) -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}<|im_user|>
  {%- elif message.role == 'assistant' -%}<|im_assistant|>
  {%- else -%}<|im_system|>
  {%- endif -%}
  {{- message.name or message.role }}<|im_middle|>
  {%- if message.role == 'assistant' -%}THOUGHT{%- endif -%}
  {%- if message.role == 'tool' -%}{{ '## Return of ' ~ message.tool_call_id ~ '\n' }}{%- endif -%}
  {{- message.content or '' -}}
  {%- if message.tool_calls -%}<|tool_calls_section_begin|>
    {%- for call in message.tool_calls -%}
      <|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments }}<|tool_call_end|>
    {%- endfor -%}
  <|tool_calls_section_end|>{%- endif -%}
  <|im_end|>
{%- endfor -%}
"""

_THOUGHT = "<think>{%- if loop.index0 > history.until -%}{{ FIELDS or '' }}{%- endif -%}</think>"
_TAIL = "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>THINK{%- endif -%}"
_SWITCH = "<think>{%- if thinking is defined and thinking is false -%}</think>{%- endif -%}"


# Renders what the published template of K2.5 renders; the others are put together below.
KIMI_TEMPLATE = """
{%- set ns = namespace(plain=-1) -%}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' and not message.get('tool_calls') -%}
    {%- set ns.plain = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- if tools -%}
  <|im_system|>tool_declare<|im_middle|>{{ tools_ts_str or tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{%- for message in messages -%}
  {%- set role = message['role'] -%}
  {%- set header = {'user': '<|im_user|>', 'assistant': '<|im_assistant|>'}.get(role, '<|im_system|>') -%}
  {{ header }}{{ message.get('name') or role }}<|im_middle|>
  {%- if role == 'assistant' -%}
    {%- if loop.index0 > ns.plain and (thinking is not defined or thinking) -%}
      <think>{{ message.get('reasoning_content', '') }}</think>
    {%- else -%}
      <think></think>
    {%- endif -%}
  {%- elif role == 'tool' -%}
    {{ '## Return of ' + message['tool_call_id'] + '\n' }}
  {%- endif -%}
  {{ message['content'] }}
  {%- if message.get('tool_calls') -%}
    <|tool_calls_section_begin|>
    {%- for call in message['tool_calls'] -%}
      {%- set arguments = call['function']['arguments'] -%}
      <|tool_call_begin|>{{ call['id'] }}<|tool_call_argument_begin|>
      {{- arguments if arguments is string else arguments | tojson }}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
  <|im_assistant|>assistant<|im_middle|><think>
  {%- if thinking is defined and not thinking -%}</think>{%- endif -%}
{%- endif -%}
"""


def _template(begin: str, thought: str, think: str, keep: str = "false", declared: str = "tools | tojson") -> str:
    tools = _TOOLS.replace("DECLARED", declared)
    return begin + tools + _MESSAGES.replace("KEEP", keep).replace("THOUGHT", thought) + _TAIL.replace("THINK", think)


TEMPLATES = {
    "kimi-k2": _template(_DEFAULT_SYSTEM, "", ""),
    "kimi-k2-thinking": _template(_DEFAULT_SYSTEM, _THOUGHT.replace("FIELDS", "message.reasoning_content"), ""),
    "kimi-k2.5": KIMI_TEMPLATE,
    "kimi-k2.6": _template(
        "",
        _THOUGHT.replace("FIELDS", "message.reasoning or message.reasoning_content"),
        _SWITCH,
        "preserve_thinking",
        "tools_ts_str or tools | tojson(separators=(',', ':'))",
    ),
}
