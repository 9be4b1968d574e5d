"""A tiny vision model, pictures for it, and what a conversation with them is to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from asyncrl.images import png_part
from tests.shared import made_once

CONTEXT = 512


def vision_model() -> str:
    """Return the folder of a randomly initialised Qwen3-VL-shaped model, made once a session."""
    return str(made_once("tiny-vision", _make))


def picture(seed: int, height: int = 32, width: int = 32) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def shown(*parts: str | Image.Image) -> dict[str, object]:
    """Return the message of a user of texts and pictures."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else png_part(part) for part in parts]
    return {"role": "user", "content": content}


def _make(folder: Path) -> None:
    import torch

    from asyncrl.extensions.vision.tiny_model import VISION_TOKENS, build_vision_model, image_processor
    from asyncrl.train.models.tiny_model import build_tokenizer, save

    tokenizer = build_tokenizer(
        ["look where", "north south east west", "user assistant"] * 20, 400, CONTEXT, VISION_TOKENS
    )
    model = build_vision_model(tokenizer, 64, 2, 2, CONTEXT, seed=0)
    with torch.no_grad():
        # So that what is seen decides what is said.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    save(folder, model, tokenizer)
    image_processor().save_pretrained(folder)
