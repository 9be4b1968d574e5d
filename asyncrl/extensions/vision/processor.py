"""A vision model's own image processor: how many tokens an image takes, and what the model reads of it.

Workers, engines and trainers all use transformers' processor in its form for Pillow and NumPy, so that the engine and
the trainer read the same numbers. It needs no torchvision.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.errors import ConfigError, InputError
from asyncrl.images import decode_image, image_key, image_size
from asyncrl.model_kinds import described
from asyncrl.types import PlacedImage

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Model types whose images are read: `pixel_values` of patches and `image_grid_thw`, with one token for each
`merge_size` x `merge_size` patches."""
CACHE_BYTES = 256 * 2**20
"""The bytes of processed images that a process keeps: an episode's images are needed again at each of its turns."""


class ImageProcessor:
    """The image processor of one model.

    image_token_id: what stands for a part of an image in the model's input. merge_size: patches, along each side, that
    become one token.
    """

    def __init__(self, processor: Any, image_token_id: int) -> None:
        self.processor = processor
        self.image_token_id = image_token_id
        self.merge_size = int(processor.merge_size)
        self._cache: OrderedDict[str, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    @cached_property
    def max_tokens(self) -> int:
        """Tokens of the largest image."""
        side = int(self.processor.patch_size) * self.merge_size
        return max(1, int(self.processor.size["longest_edge"]) // side**2)

    @cached_property
    def patch_values(self) -> int:
        """Numbers of one patch."""
        processor = self.processor
        return 3 * int(processor.temporal_patch_size) * int(processor.patch_size) ** 2

    def num_tokens(self, data: bytes) -> int:
        """Return how many tokens stand for an image. Raises `InputError`."""
        width, height = image_size(data)
        return int(self.processor.get_number_of_image_patches(height, width)) // self.merge_size**2

    def expand(self, token_ids: np.ndarray, files: Sequence[bytes]) -> np.ndarray:
        """Repeat the one image token that a template writes for each image, as the model's own processor does.

        token_ids: [L] int32, of the rendered text. files: the images in its order. Raises `InputError` where the two do
        not fit.
        """
        places = np.flatnonzero(token_ids == self.image_token_id)
        if len(places) != len(files):
            raise InputError(
                f"the rendered messages hold {len(places)} image tokens for {len(files)} images: no text may contain "
                "the image token, and the chat template must write one for each image"
            )
        counts = np.ones(len(token_ids), np.int64)
        for place, data in zip(places, files, strict=True):
            # What is broken further inside must not be found by the engine or the trainer.
            decode_image(data)
            counts[place] = self.num_tokens(data)
        return np.repeat(token_ids, counts)

    def find(self, token_ids: np.ndarray, files: Sequence[bytes]) -> tuple[PlacedImage, ...]:
        """Return where images stand in the ids that `expand` returned for them."""
        places = np.flatnonzero(token_ids == self.image_token_id)
        found, before = [], 0
        known: dict[str, bytes] = {}
        for data in files:
            start, count = int(places[before]), self.num_tokens(data)
            key = image_key(data)
            found.append(PlacedImage(start, start + count, key, known.setdefault(key, data)))
            before += count
        return tuple(found)

    def save(self, folder: Path) -> None:
        """Write its files into a model's folder."""
        self.processor.save_pretrained(folder)

    def pixels(self, image: PlacedImage) -> tuple[np.ndarray, np.ndarray]:
        """Return what the model reads: patches [N, values] float32, and the grid [3] of time, height and width.

        Raises `InputError` where the image is broken or does not have as many tokens as its place.
        """
        with self._lock:
            if (cached := self._cache.get(image.key)) is not None:
                self._cache.move_to_end(image.key)
        if cached is None:
            made = self.processor(images=[decode_image(image.data)], return_tensors="np")
            cached = (
                np.asarray(made["pixel_values"], np.float32),
                np.asarray(made["image_grid_thw"][0], np.int64),
            )
            with self._lock:
                self._remember(image.key, cached)
        tokens = int(cached[1].prod()) // self.merge_size**2
        if tokens != image.end - image.start:
            raise InputError(f"image {image.key}: has {tokens} tokens, and {image.end - image.start} places")
        return cached

    def _remember(self, key: str, made: tuple[np.ndarray, np.ndarray]) -> None:
        if key not in self._cache:
            self._cached_bytes += made[0].nbytes
        self._cache[key] = made
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, (oldest, _) = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.nbytes


def load_image_processor(model: str) -> ImageProcessor | None:
    """Load the image processor of a model folder or hub name; None for a model that reads text alone.

    Raises `ConfigError` for a vision model of another family.
    """
    config = described(model)
    if "vision_config" not in config:
        return None
    if config.get("model_type") not in FAMILIES:
        raise ConfigError(
            f"model.path: {model!r} is a vision model of type {config.get('model_type')!r}; those of "
            f"{', '.join(FAMILIES)} are supported"
        )
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    try:
        processor = Qwen2VLImageProcessorPil.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:300]
        raise ConfigError(f"model.path: {model!r} has no image processor ({reason})") from error
    return ImageProcessor(processor, int(config["image_token_id"]))
