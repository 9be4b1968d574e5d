"""Chat templates that behave as those of model families do where they refuse messages, written anew for the tests."""

import copy

from asyncrl.chat.renderer import ChatRenderer

LLAMA_31 = """\
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system + '<|eot_id|>' }}
{%- if tools is not none and tools is defined %}
    {%- if messages | length == 0 %}
        {{- raise_exception('Cannot put tools in the first user message: there is none') }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\\n\\n' }}{% endfor %}
    {{- messages[0].content | trim + '<|eot_id|>' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson + '}<|eot_id|>' }}
    {%- elif message.role in ('tool', 'ipython') %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
"""One call a turn; tools stand before the first user message, results are `ipython`'s."""

MISTRAL = """\
{%- set told = messages[1:] if messages[0].role == 'system' else messages %}
{%- set asked = told | selectattr('role', 'equalto', 'user') | list %}
{%- set seen = namespace(number=0) %}
{%- for message in told if message.role != 'tool' and not message.tool_calls %}
    {%- if (message.role == 'user') != (seen.number % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set seen.number = seen.number + 1 %}
{%- endfor %}
{{- '<s>' }}
{%- for message in told %}
    {%- if message.role == 'user' %}
        {%- if tools and message == asked[-1] %}
            {{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}
        {{- message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}
            {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
        {%- endif %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception('Only user, assistant and tool roles are supported') }}
    {%- endif %}
{%- endfor %}
"""
"""Ids of nine characters, users and assistants in turn, tools before the last user message, no generation prompt."""

THINKING = """\
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{% endif %}
"""
"""As of models that always reason: the generation prompt opens <think>, history has no reasoning."""


def with_template(renderer, template, end=None, more=()):
    """A renderer like `renderer` with another template, whose turns end with the special token `end`.

    more: further special tokens that end turns.
    """
    tokenizer = copy.deepcopy(renderer.tokenizer)
    tokenizer.chat_template = template
    if end is not None:
        tokenizer.add_special_tokens({"eos_token": end})
    tokenizer.add_special_tokens({"additional_special_tokens": list(more)})
    return ChatRenderer(tokenizer, tokenizer.convert_tokens_to_ids(list(more)))
