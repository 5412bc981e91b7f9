"""A chat template of our own that does with Kimi's markers what Kimi K2.5's does: `thinking`, calls, results."""

KIMI_TEMPLATE = """
{%- set ns = namespace(plain=-1) -%}
{%- for message in messages -%}
  {%- if message['role'] == 'assistant' and not message.get('tool_calls') -%}
    {%- set ns.plain = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- if tools -%}
  <|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
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
