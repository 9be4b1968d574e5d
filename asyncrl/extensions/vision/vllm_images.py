"""Images for vLLM: a request's tokens and images as the engine takes them, and vision models without torchvision.

A request names every token, those that stand for images included, and brings the images as files. They go through the
model's image processor here, as in the trainer, so that both read the same numbers; vLLM's own processor, which would
tokenize again, is passed by.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncrl.errors import InputError
from asyncrl.extensions.vision.processor import ImageProcessor, load_image_processor
from asyncrl.images import MAX_IMAGES, image_key, image_size
from asyncrl.types import PlacedImage
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook

VISION = "ASYNCRL_VISION"
"""Environment variable of an engine's server, for a vision model."""


class Images(EngineHook):
    """Reads the images of requests, whose places name files that are in `images` of the body."""

    def keeps_cache(self, options: Mapping[str, Any]) -> bool:
        """See `EngineHook`: none that has been computed of images does."""
        if options.get("keep_kv") and os.environ.get(VISION):
            raise InputError(
                "engine.keep_kv: must be false for a vision model: what it made of images is kept, too"
            )
        return False

    def read_body(self, body: dict[str, Any]) -> None:
        """See `EngineHook`."""
        files = check_files(body.get("images", {}))
        for request in body["requests"]:
            if "images" in request:
                request["images"] = read_placed(request["images"], files)

    async def read(self, engine: Engine, asked: Asked) -> None:
        """See `EngineHook`."""
        if images := asked.request.get("images"):
            model, token_ids = engine.vllm_config.model_config.model, asked.prompt["prompt_token_ids"]
            asked.prompt = await asyncio.to_thread(image_prompt, model, token_ids, images)


def read_placed(raw: Any, files: Mapping[str, bytes]) -> list[PlacedImage]:
    """Read a request's images: `[start, end, key]` each, with their files by key. Raises `InputError`."""
    if not isinstance(raw, list) or len(raw) > MAX_IMAGES:
        raise InputError(f"images: must be a list of at most {MAX_IMAGES}")
    found: list[PlacedImage] = []
    for start, end, key in raw:
        if key not in files:
            raise InputError(f"images: no file of {key!r} came with the request")
        found.append(PlacedImage(int(start), int(end), str(key), files[key]))
    return found


def check_files(files: Any) -> dict[str, bytes]:
    """Return image files by their keys. Raises `InputError` for those that are refused."""
    if not isinstance(files, dict):
        raise InputError(f"images: must be a map, got {type(files).__name__}")
    for key, data in files.items():
        if not isinstance(data, bytes) or image_key(data) != key:
            raise InputError(f"images: {str(key)[:64]!r} is not the hash of its file")
        image_size(data, f"image {key}")
    return files


@functools.cache
def engine_processor(model: str) -> ImageProcessor | None:
    """Return the image processor of the model that this process serves."""
    return load_image_processor(model)


def image_prompt(model: str, token_ids: list[int], images: Sequence[PlacedImage]) -> Any:
    """Return a prompt of exactly these tokens, of which some stand for `images`, as vLLM's engine takes it.

    Raises `InputError` where they do not fit the tokens, or the model reads none.
    """
    import torch
    from transformers import BatchFeature
    from vllm.inputs.engine import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    processor = engine_processor(model)
    if processor is None:
        raise InputError("images: the model reads text alone")
    _check_places(processor, token_ids, images)
    pixels, grids = zip(*(processor.pixels(image) for image in images), strict=True)
    read = BatchFeature(
        {
            "pixel_values": torch.from_numpy(np.concatenate(pixels)),
            "image_grid_thw": torch.from_numpy(np.stack(grids)),
        }
    )
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", read["image_grid_thw"].prod(-1)),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    return mm_input(
        token_ids,
        MultiModalKwargsItems.from_hf_inputs(read, fields),
        {"image": [image.key for image in images]},
        {"image": [PlaceholderRange(image.start, image.end - image.start) for image in images]},
    )


def _check_places(processor: ImageProcessor, token_ids: list[int], images: Sequence[PlacedImage]) -> None:
    before = 0
    for image in images:
        if not before <= image.start < image.end <= len(token_ids):
            raise InputError(f"images: [{image.start}, {image.end}) is no place after token {before}")
        if set(token_ids[image.start : image.end]) != {processor.image_token_id}:
            raise InputError(
                f"images: the tokens [{image.start}, {image.end}) must be {processor.image_token_id}, the image token"
            )
        before = image.end


def change_vllm() -> None:
    """Change what vLLM does for a vision model, in each of its processes."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        serve_without_torchvision()
    keep_images_of_running_requests()


def keep_images_of_running_requests() -> None:
    """Have vLLM's scheduler send its workers every image of a request.

    It leaves out those that the prefix cache covers. New weights empty that cache while requests run, which then need
    all their images again.
    """
    from vllm.v1.core.sched import output

    def keep(features: Any, *covered: Any, **rest: Any) -> Any:
        return features

    setattr(output, "strip_covered_mm_data", keep)  # noqa: B010 - mypy forbids to assign it


def serve_without_torchvision() -> None:
    """Let vLLM load vision models on a CPU, where no torchvision fits the installed torch.

    vLLM and transformers import it for image and video processors of their own, which no request of ours needs. Videos
    are not served.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    names = [
        "torchvision" + rest for rest in ("", ".transforms", ".transforms.v2", ".transforms.v2.functional")
    ]
    made: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    made["torchvision.transforms.v2"].functional = made["torchvision.transforms.v2.functional"]
    sys.modules.update(made)
    try:
        from vllm.model_executor.models.qwen2_vl import Qwen2VLProcessingInfo
    finally:
        # Whoever asks later must find that it is missing.
        for name in names:
            del sys.modules[name]

    def most_tokens(info: Any, seq_len: int, mm_counts: Mapping[str, int]) -> dict[str, int]:
        processor = engine_processor(info.ctx.model_config.model)
        assert processor is not None
        return {"image": processor.max_tokens}

    setattr(Qwen2VLProcessingInfo, "get_mm_max_tokens_per_item", most_tokens)  # noqa: B010 - mypy forbids to assign it
