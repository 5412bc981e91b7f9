"""A chat template that does to reasoning, calls and results what that of gpt-oss does; one call in each message."""

from __future__ import annotations

OSS_TEMPLATE = """
{%- set system = messages[0] if messages[0].role == 'system' else none -%}
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}
# Valid channels: analysis, commentary, final.<|end|>
{%- if system or tools -%}
  <|start|>developer<|message|>{{ system.content if system else '' }}
  {%- if tools %}{{ '\\n# Tools\\n' ~ (tools | tojson) }}{% endif -%}
  <|end|>
{%- endif -%}
{%- set called = namespace(name='') -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    <|start|>user<|message|>{{ message.content }}<|end|>
  {%- elif message.role == 'tool' -%}
    <|start|>functions.{{ called.name }} to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}
    {{- '<|end|>' -}}
  {%- elif message.role == 'assistant' and message.tool_calls -%}
    {%- set answered = namespace(later=false) -%}
    {%- for later in messages[loop.index:] if later.role == 'assistant' and not later.tool_calls -%}
      {%- set answered.later = true -%}
    {%- endfor -%}
    {%- if message.thinking and not answered.later -%}
      <|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>
    {%- endif -%}
    {%- set call = message.tool_calls[0].function -%}
    {%- set called.name = call.name -%}
    <|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments | tojson }}
    {{- '<|call|>' -}}
  {%- elif message.role == 'assistant' -%}
    <|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
