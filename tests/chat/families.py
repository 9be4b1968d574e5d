"""A small chat template for each model family, in the family's public format, written anew for the tests."""

from dataclasses import dataclass

from tests.chat.templates import LLAMA_31, MISTRAL

_LAST_USER = r"""
{%- set last = namespace(user=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
"""
_CHATML = (
    _LAST_USER
    + r"""
{%- if tools %}
    {{- '<|im_start|>system\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content and loop.index0 > last.user %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{ '\n' }}{% endif %}
            {{- '<tool_call>\n' }}CALL{{ '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
)
QWEN3 = _CHATML.replace(
    "CALL",
    "{{- '{\"name\": \"' + call.function.name + '\", \"arguments\": ' + call.function.arguments | tojson + '}' }}",
)
QWEN3_CODER = _CHATML.replace(
    "CALL",
    r"""{{- '<function=' + call.function.name + '>\n' }}
            {%- for key, value in call.function.arguments | items %}
                {{- '<parameter=' + key + '>\n' }}
                {{- value if value is string else value | tojson }}{{ '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>' }}""",
)
_GLM = (
    _LAST_USER
    + r"""
{{- '[gMASK]<sop>' }}
{%- if tools %}
    {{- '<|system|>\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}{{ '\n</tools>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- set thought = message.reasoning_content if loop.index0 > last.user else '' %}
        THOUGHT
        {%- for call in message.tool_calls or [] %}
            {{- 'LINE<tool_call>' + call.function.name }}
            {%- for key, value in call.function.arguments | items %}
                {{- 'LINE<arg_key>' + key + '</arg_key>LINE<arg_value>' }}
                {{- value if value is string else value | tojson }}{{ '</arg_value>' }}
            {%- endfor %}
            {{- 'LINE</tool_call>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
        {{- 'LINE<tool_response>LINE' + message.content + 'LINE</tool_response>' }}
    {%- else %}
        {{- '<|' + message.role + '|>LINE' + message.content }}
    {%- endif %}
{%- endfor %}
"""
)
GLM_45 = (
    _GLM.replace(
        "THOUGHT",
        r"""{{- '\n<think>' + (thought or '') + '</think>' }}
        {%- if message.content %}{{ '\n' + message.content }}{% endif %}""",
    ).replace("LINE", r"\n")
    + "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
GLM_47 = (
    _GLM.replace(
        "THOUGHT", "{{- ('<think>' + thought if thought else '') + '</think>' + message.content }}"
    ).replace("LINE", "")
    + "{%- if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"
)
_DEEPSEEK = r"""
{{- '<｜begin▁of▁sentence｜>' }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- set after = namespace(tool=false) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if not after.tool %}{{ '<｜Assistant｜>CLOSED' }}{% endif %}
        {{- message.content.split('</think>')[-1] }}
        {%- if message.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- BETWEEN }}
                {{- '<｜tool▁call▁begin｜>BEFORE' + call.function.name + 'SEP' + call.function.arguments }}
                {{- 'AFTER<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
        {%- set after.tool = false %}
    {%- elif message.role == 'tool' %}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
        {%- set after.tool = true %}
    {%- else %}
        {{- '<｜User｜>' + message.content }}
        {%- set after.tool = false %}
    {%- endif %}
{%- endfor %}
"""
_DEEPSEEK_ASKS = "{%- if add_generation_prompt and not after.tool %}{{ '<｜Assistant｜>OPENED' }}{% endif %}"
DEEPSEEK_V3 = (_DEEPSEEK + _DEEPSEEK_ASKS.replace("OPENED", "")).replace("CLOSED", "")
DEEPSEEK_V3 = (
    DEEPSEEK_V3.replace("BETWEEN", r"'' if loop.first else '\n'")
    .replace("BEFORE", "function<｜tool▁sep｜>")
    .replace("SEP", r"\n```json\n")
    .replace("AFTER", r"\n```")
)
"""It concatenates the arguments of calls as text."""
DEEPSEEK_V31 = _DEEPSEEK + _DEEPSEEK_ASKS.replace("OPENED", "<think>").replace("CLOSED", "</think>")
DEEPSEEK_V31 = (
    DEEPSEEK_V31.replace("CLOSED", "</think>")
    .replace("BETWEEN", "''")
    .replace("BEFORE", "")
    .replace("SEP", "<｜tool▁sep｜>")
    .replace("AFTER", "")
)
DEEPSEEK_V32 = r"""
{{- '<｜begin▁of▁sentence｜>' }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<｜Assistant｜>' if messages[loop.index0 - 1].role == 'user' }}
        {{- '<think>' + (message.reasoning_content or '') + '</think>' + message.content }}
        {%- if message.tool_calls %}
            {{- '\n\n<｜DSML｜function_calls>' }}
            {%- for call in message.tool_calls %}
                {{- '\n<｜DSML｜invoke name="' + call.function.name + '">\n' }}
                {%- for key, value in call.function.arguments | items %}
                    {{- '<｜DSML｜parameter name="' + key + '" string="' }}
                    {{- 'true">' + value if value is string else 'false">' + value | tojson }}
                    {{- '</｜DSML｜parameter>\n' }}
                {%- endfor %}
                {{- '</｜DSML｜invoke>' }}
            {%- endfor %}
            {{- '\n</｜DSML｜function_calls>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'tool' %}
        {{- '\n\n<result>' + message.content + '</result>\n\n' }}
    {%- else %}
        {{- '<｜User｜>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<｜Assistant｜>' if messages[-1].role == 'user' }}{{ '<think>' }}
{%- endif %}
"""
LLAMA_4 = r"""
{{- '<|begin_of_text|>' }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|header_start|>' + role + '<|header_end|>\n\n' }}
    {%- if message.tool_calls %}
        {{- '[' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name + '(' }}
            {%- for key, value in call.function.arguments | items %}
                {{- key + '=' + value | tojson }}{{ ', ' if not loop.last }}
            {%- endfor %}
            {{- ')' }}{{ ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\n\n' }}{% endif %}
"""
MISTRAL_V11 = r"""
{{- '<s>' }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.tool_call_id + '[TOOL_CONTENT]' + message.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
"""
HARMONY = r"""
{%- set final = namespace(at=-1) %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and not m.tool_calls %}{% set final.at = loop.index0 %}{% endif %}
{%- endfor %}
{{- '<|start|>system<|message|># Valid channels: analysis, commentary, final.<|end|>' }}
{%- if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}
{%- set called = namespace(name='') %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if message.reasoning_content and (loop.index0 > final.at or loop.last) %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.reasoning_content + '<|end|>' }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- if message.content %}
                {{- '<|start|>assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}
            {%- endif %}
            {%- set call = message.tool_calls[0].function %}
            {%- set called.name = call.name %}
            {{- '<|start|>assistant<|channel|>commentary to=functions.' + call.name }}
            {{- ' <|constrain|>json<|message|>' + call.arguments | tojson + '<|call|>' }}
        {%- else %}
            {{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
            {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content | tojson + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""
"""One call a turn, answered under the name of the function; `<|return|>` becomes `<|end|>` in history."""
KIMI_K2 = r"""
{%- if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_assistant|>assistant<|im_middle|>' }}
        {%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
        {{- message.content }}
        {%- if message.tool_calls %}
            {{- '<|tool_calls_section_begin|>' }}
            {%- for call in message.tool_calls %}
                {{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
                {{- call.function.arguments | tojson + '<|tool_call_end|>' }}
            {%- endfor %}
            {{- '<|tool_calls_section_end|>' }}
        {%- endif %}
        {{- '<|im_end|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_system|>tool<|im_middle|>## Return of ' + message.tool_call_id + '\n' }}
        {{- message.content + '<|im_end|>' }}
    {%- else %}
        {{- '<|im_user|>user<|im_middle|>' + message.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}
"""


@dataclass(frozen=True)
class Family:
    """How a family's turns are written and read."""

    template: str
    end: str
    """The tokenizer's `eos_token`."""
    tool_format: str
    reasoning_format: str = ""
    tokens: tuple[str, ...] = ()
    """Further tokens that end turns, or that vLLM's parser looks up."""
    most_calls: int = 2
    says: bool = True
    """Whether a turn may hold text beside its calls."""
    reasons: bool = True
    stops: tuple[str, ...] = ()
    keeps: bool = True
    """Whether the template writes the reasoning of a turn with calls once these are answered."""


_DEEPSEEK_TOKENS = tuple(
    f"<｜tool▁{name}｜>" for name in ["calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"]
)
_GLM_STOPS = ("<|user|>", "<|observation|>")
_THINK_TOKENS = ("<think>", "</think>")
FAMILIES = {
    "qwen3": Family(QWEN3, "<|im_end|>", "hermes", "think"),
    "qwen3-vllm": Family(QWEN3, "<|im_end|>", "qwen3_json", "qwen3", _THINK_TOKENS),
    "qwen3-coder": Family(QWEN3_CODER, "<|im_end|>", "qwen3_coder", "think"),
    "glm-4.5": Family(GLM_45, "<|endoftext|>", "glm45", "glm45", _THINK_TOKENS, stops=_GLM_STOPS),
    "glm-4.7": Family(GLM_47, "<|endoftext|>", "glm47", "think", stops=_GLM_STOPS),
    "deepseek-v3": Family(
        DEEPSEEK_V3, "<｜end▁of▁sentence｜>", "deepseek_v3", tokens=_DEEPSEEK_TOKENS, reasons=False
    ),
    "deepseek-v3.1": Family(
        DEEPSEEK_V31,
        "<｜end▁of▁sentence｜>",
        "deepseek_v31",
        "deepseek_r1",
        (*_DEEPSEEK_TOKENS, *_THINK_TOKENS),
        keeps=False,
    ),
    "deepseek-v3.2": Family(DEEPSEEK_V32, "<｜end▁of▁sentence｜>", "deepseek_v32", "think"),
    "llama-3": Family(LLAMA_31, "<|eot_id|>", "llama", most_calls=1, says=False, reasons=False),
    "llama-3-vllm": Family(
        LLAMA_31, "<|eot_id|>", "llama3_json", "", ("<|python_tag|>",), 1, says=False, reasons=False
    ),
    "llama-4": Family(LLAMA_4, "<|eot|>", "llama4_pythonic", says=False, reasons=False),
    "mistral": Family(MISTRAL, "</s>", "mistral", says=False, reasons=False),
    "mistral-v11": Family(MISTRAL_V11, "</s>", "mistral", reasons=False),
    "gpt-oss": Family(HARMONY, "<|return|>", "harmony", most_calls=1, stops=("<|call|>",), keeps=False),
    "kimi-k2": Family(KIMI_K2, "<|im_end|>", "kimi_k2", "kimi_k2", _THINK_TOKENS),
}
