"""Models that read more than text: what an extension knows of a kind of them, found by the keys of their `config.json`.

Torch-free; what a kind is asked for loads what that needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from asyncrl.extensions.table import rows
from asyncrl.types import PlacedImage


class ImageProcessor(Protocol):
    """What the images of messages are to one model."""

    image_token_id: int
    """What stands for a part of an image in the model's input."""

    def expand(self, token_ids: np.ndarray, files: Sequence[bytes]) -> np.ndarray:
        """Return the ids [L] int32 of a rendering, with as many for each image as the model reads.

        files: the images in its order. Raises `InputError` where the two do not fit.
        """
        ...

    def find(self, token_ids: np.ndarray, files: Sequence[bytes]) -> tuple[PlacedImage, ...]:
        """Return where images stand in the ids that `expand` returned for them."""
        ...

    def save(self, folder: Path) -> None:
        """Write its files into a model's folder."""
        ...


class Trained(NamedTuple):
    """How a model is loaded and run by the trainer."""

    loader: Any
    """Transformers' class with `from_pretrained`."""
    rows: Any
    """Runs its trunk over rows (`asyncrl.train.models.policy.RunRows`)."""


class Served(NamedTuple):
    """What a vLLM server of a model is started with besides."""

    arguments: Sequence[str]
    variables: Mapping[str, str]


class ModelKind(Protocol):
    """A kind of models. Each method raises `ConfigError` for a model that cannot be used."""

    def image_processor(self, model: str) -> ImageProcessor:
        """Load what renders messages for a model folder or hub name."""
        ...

    def trained(self, model: str) -> Trained:
        """Return how the trainer loads and runs a model folder or hub name."""
        ...

    def served(self) -> Served:
        """Return what a vLLM server is started with."""
        ...


def kind_of(model: str) -> ModelKind | None:
    """Return the kind of a model folder or hub name; None for a model that reads text alone."""
    keys = frozenset(described(model))
    return next((row.load()() for row in rows("model_kinds") if row.wanted(keys)), None)


def described(model: str) -> dict[str, Any]:
    """Return a model's config.json; that of the hub's cache or the hub for a name."""
    path = Path(model) / "config.json"
    if not path.is_file():
        import huggingface_hub

        try:
            path = Path(huggingface_hub.hf_hub_download(model, "config.json"))
        except (OSError, ValueError):
            # Whoever loads the model says what is wrong with it.
            return {}
    return dict(json.loads(path.read_text(encoding="utf-8")))
