"""A tiny Qwen3- or Qwen3-VL-shaped model with a byte-level BPE tokenizer and a real chat template, made here.

It stands in for a downloaded checkpoint: `transformers` and vLLM load the folder like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.logging import disable_progress_bar

M = TypeVar("M", bound=PreTrainedModel)

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
TOOL_CALL = "<tool_call>"
TOOL_CALL_END = "</tool_call>"
SPECIAL_TOKENS = [END_OF_TEXT, IM_START, IM_END]
PLAIN_MARKERS = [TOOL_CALL, TOOL_CALL_END]
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
VISION_TOKENS = [VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD]
PATCH_SIZE = 8
"""Pixels, along each side, of what the vision tower reads as one patch."""
MERGE_SIZE = 2
"""Patches, along each side, that become one token: it stands for 16 x 16 pixels."""
MIN_PIXELS, MAX_PIXELS = 16 * 16, 256 * 256
POSITION_STD = 0.5
"""The standard deviation of the vision tower's positions. At the usual 0.02 a patch says little of where it is, and
to learn it takes long."""

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
    corpus: Iterable[str], vocab_size: int, max_length: int, vision: bool = False
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of `vocab_size` on `corpus`, of a model that reads images with `vision`.

    Deterministic for equal input.
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
            special_tokens=SPECIAL_TOKENS + (VISION_TOKENS if vision else []),
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
    return _seeded(lambda: Qwen3ForCausalLM(config), seed)


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of a token."""
    return int(tokenizer.get_vocab()[token])


def build_vision_model(
    tokenizer: PreTrainedTokenizerFast,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    max_length: int,
    seed: int,
) -> Qwen3VLForConditionalGeneration:
    """Return a randomly initialised model that reads images, the same for the same seed."""
    start, end, image, video = (token_id(tokenizer, token) for token in VISION_TOKENS)
    half = hidden_size // num_heads // 2
    side = half // 4
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden_size,
            "intermediate_size": hidden_size * 3,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": max(1, num_heads // 2),
            "head_dim": hidden_size // num_heads,
            "max_position_embeddings": max_length,
            "eos_token_id": tokenizer.eos_token_id,
            "tie_word_embeddings": True,
            "dtype": "float32",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [half - 2 * side, side, side],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": hidden_size,
            "intermediate_size": hidden_size * 2,
            "num_heads": num_heads,
            "patch_size": PATCH_SIZE,
            "spatial_merge_size": MERGE_SIZE,
            "temporal_patch_size": 2,
            "out_hidden_size": hidden_size,
            "num_position_embeddings": 16**2,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        dtype="float32",
    )

    def make() -> Qwen3VLForConditionalGeneration:
        model = Qwen3VLForConditionalGeneration(config)
        torch.nn.init.normal_(model.model.visual.pos_embed.weight, std=POSITION_STD)
        return model

    return _seeded(make, seed)


def _seeded(make: Callable[[], M], seed: int) -> M:
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
    if isinstance(model, Qwen3VLForConditionalGeneration):
        image_processor().save_pretrained(folder)


def image_processor() -> Qwen2VLImageProcessorPil:
    """Return what the models of `build_vision_model` read images by."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH_SIZE,
        merge_size=MERGE_SIZE,
        temporal_patch_size=2,
        size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    )
