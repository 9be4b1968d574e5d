"""A tiny Qwen3-VL-shaped model, made here, with the tokenizer and the chat template of the tiny text model."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from asyncrl.extensions.vision.processor import ImageProcessor
from asyncrl.train.models.tiny_model import seeded, token_id

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

    return seeded(make, seed)


def image_processor() -> Qwen2VLImageProcessorPil:
    """Return what the models of `build_vision_model` read images by."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH_SIZE,
        merge_size=MERGE_SIZE,
        temporal_patch_size=2,
        size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    )


def processor_of(tokenizer: PreTrainedTokenizerFast) -> ImageProcessor:
    """Return what renders images for the models of `build_vision_model`."""
    return ImageProcessor(image_processor(), token_id(tokenizer, IMAGE_PAD))
