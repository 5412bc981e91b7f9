"""Chat templates that do to reasoning, tools and prompt tails what Kimi's do; by the name of the format."""

from __future__ import annotations

_DEFAULT_SYSTEM = """
{%- if messages[0].role != 'system' -%}
<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>
{%- endif -%}
"""

_TOOLS = """
{%- if tools -%}
<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>
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


def _template(begin: str, thought: str, think: str, keep: str = "false") -> str:
    return begin + _TOOLS + _MESSAGES.replace("KEEP", keep).replace("THOUGHT", thought) + _TAIL.replace("THINK", think)


TEMPLATES = {
    "kimi-k2": _template(_DEFAULT_SYSTEM, "", ""),
    "kimi-k2-thinking": _template(_DEFAULT_SYSTEM, _THOUGHT.replace("FIELDS", "message.reasoning_content"), ""),
    "kimi-k2.5": _template("", _THOUGHT.replace("FIELDS", "message.reasoning_content"), _SWITCH),
    "kimi-k2.6": _template(
        "", _THOUGHT.replace("FIELDS", "message.reasoning or message.reasoning_content"), _SWITCH, "preserve_thinking"
    ),
}
