"""Vision-language models as a kind of models. Nothing is imported of what a process does not ask for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from asyncrl.gpus import on_cpu
from asyncrl.images import MAX_IMAGES
from asyncrl.model_kinds import Served, Trained

if TYPE_CHECKING:
    from asyncrl.extensions.vision.processor import ImageProcessor


class VisionModels:
    """Implements `ModelKind`."""

    def image_processor(self, model: str) -> ImageProcessor:
        """See `ModelKind`. Raises `ConfigError` for another family than those that are known."""
        from asyncrl.extensions.vision.processor import load_image_processor

        processor = load_image_processor(model)
        assert processor is not None
        return processor

    def trained(self, model: str) -> Trained:
        """See `ModelKind`. Raises `ConfigError` for another family than those that are known."""
        from transformers import AutoModelForImageTextToText

        from asyncrl.extensions.vision.rows import VisionRows

        return Trained(AutoModelForImageTextToText, VisionRows(self.image_processor(model)))

    def served(self) -> Served:
        """See `ModelKind`: the requests bring images that `vllm_images` has read."""
        arguments = ["--limit-mm-per-prompt", json.dumps({"image": MAX_IMAGES, "video": 0})]
        # The images come rescaled and normalised; vLLM's vision towers would do both again.
        arguments += ["--mm-processor-cache-gb", "0", "--no-mm-device-do-normalize"]
        # To profile, vLLM would need torchvision, and its memory on a CPU is not bounded by it.
        arguments += ["--skip-mm-profiling"] if on_cpu() else []
        return Served(arguments, {"ASYNCRL_VISION": "1"})
