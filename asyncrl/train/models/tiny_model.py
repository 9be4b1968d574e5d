"""A tiny Qwen3-shaped model with a byte-level BPE tokenizer and a real chat template, made here.

It stands in for a downloaded checkpoint: `transformers` and vLLM load the folder like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils.logging import disable_progress_bar

M = TypeVar("M", bound=PreTrainedModel)

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
TOOL_CALL = "<tool_call>"
TOOL_CALL_END = "</tool_call>"
SPECIAL_TOKENS = [END_OF_TEXT, IM_START, IM_END]
PLAIN_MARKERS = [TOOL_CALL, TOOL_CALL_END]

CHAT_TEMPLATE = """\
{%- macro words(content) %}
    {{- content if content is string else (content or []) | map(attribute='text') | join }}
{%- endmacro %}
{%- set ns = namespace(system='') %}
{%- for message in messages if message.role == 'system' %}{% set ns.system = words(message.content) %}{% endfor %}
{%- if tools or ns.system %}
    {{- '<|im_start|>system\\n' + ns.system }}
    {%- for tool in tools or [] %}
        {{- '\\n' + tool.function.name + '(' + (tool.function.parameters.properties | list | join(',')) + ')' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + words(message.content) }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_tokenizer(
    corpus: Iterable[str], vocab_size: int, max_length: int, more_special: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocab_size` on `corpus`.

    more_special: tokens that stand for no text, beside those of turns. Deterministic for equal input.
    """
    core = Tokenizer(models.BPE())
    # Digits stand alone, so that copying a number is copying its digits.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocab_size - len(PLAIN_MARKERS),
            special_tokens=[*SPECIAL_TOKENS, *more_special],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    core.add_tokens(PLAIN_MARKERS)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=IM_END, pad_token=END_OF_TEXT, model_max_length=max_length
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    max_length: int,
    eos_token_id: int,
    seed: int,
) -> Qwen3ForCausalLM:
    """Return a randomly initialised model, the same for the same seed."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 3,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=max(1, num_heads // 2),
        head_dim=hidden_size // num_heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        eos_token_id=eos_token_id,
        dtype="float32",
    )
    return seeded(lambda: Qwen3ForCausalLM(config), seed)


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of a token."""
    return int(tokenizer.get_vocab()[token])


def seeded(make: Callable[[], M], seed: int) -> M:
    """Return what `make` draws from the seed, and leave torch's own generator where it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def save(folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the folder that `transformers` and vLLM load."""
    # It takes a moment, and a bar would stand in the middle of the lines about the run.
    disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
