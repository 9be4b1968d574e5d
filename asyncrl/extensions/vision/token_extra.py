"""What the policy saw: `PlacedImage`s in the order of their tokens, none of which was sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncrl.data.fields import Fields
from asyncrl.data.token_extras.kind import Tokens
from asyncrl.errors import InputError
from asyncrl.images import MAX_IMAGES, decode_image, image_key, image_size, images_in, moved
from asyncrl.types import IMAGES, PlacedImage

Placed = Sequence[Sequence[PlacedImage]]
"""The images of each row; rows beyond its end have none."""


class ImagesCollector:
    """Collects the images of each context, which come with places counted from its first token."""

    def __init__(self) -> None:
        self.images: tuple[PlacedImage, ...] = ()

    def add(self, piece: Sequence[PlacedImage], start: int, end: int) -> None:
        """See `Collector`. Images of one key share their bytes."""
        known = {image.key: image.data for image in self.images}
        one_copy = [replace(i, data=known.setdefault(i.key, i.data)) for i in piece]
        self.images += moved(one_copy, start)
        if len(self.images) > MAX_IMAGES:
            raise InputError(f"the conversation holds more than {MAX_IMAGES} images")

    def drop(self, num_tokens: int) -> None:
        """See `Collector`."""
        self.images = images_in(self.images, 0, num_tokens)

    def asked(self) -> tuple[PlacedImage, ...] | None:
        """See `Collector`."""
        return self.images or None

    def value(self) -> tuple[PlacedImage, ...] | None:
        """See `Collector`."""
        return self.images or None


class Images:
    """Implements `Kind`. On the wire each file comes once, under its key."""

    name = IMAGES
    read_by_models = True
    of_sampler = False
    holds_files = True
    large_answers = False

    def collector(self) -> ImagesCollector:
        """See `Kind`."""
        return ImagesCollector()

    def request(self, value: Sequence[PlacedImage]) -> dict[str, Any]:
        """See `Kind`."""
        return {"images": [[image.start, image.end, image.key] for image in value]}

    def request_files(self, values: Sequence[Sequence[PlacedImage]]) -> dict[str, Any]:
        """See `Kind`: each file by its key."""
        files = {image.key: image.data for value in values for image in value}
        return {"images": files} if files else {}

    def check_reported(self, message: Mapping[str, Any], value: Any, num_read: int, num_sampled: int) -> None:
        """See `Kind`; engines report none."""

    def reported(self, message: Mapping[str, Any]) -> None:
        """None: the policy is shown them."""

    def encode(self, value: Sequence[PlacedImage]) -> dict[str, Any]:
        """See `Kind`."""
        return {
            "images": [[image.start, image.end, image.key] for image in value],
            "image_files": {image.key: image.data for image in value},
        }

    def decode(self, fields: Fields, tokens: Tokens) -> tuple[PlacedImage, ...] | None:
        """See `Kind`; reads the headers of the files alone."""
        where, loss_mask = f"{fields.where}.images", tokens.loss_mask
        raw = fields.optional("images", list, [])
        files = fields.optional("image_files", dict, {})
        if len(raw) > MAX_IMAGES:
            raise InputError(f"{where} must hold at most {MAX_IMAGES} images, got {len(raw)}")
        for key, data in files.items():
            if type(data) is not bytes or image_key(data) != key:
                raise InputError(f"{fields.where}.image_files: {key[:64]!r} must be the hash of its file")
            image_size(data, f"{fields.where}.image_files[{key}]")
        found: list[PlacedImage] = []
        before = 0
        for index, item in enumerate(raw):
            if (
                type(item) is not list
                or [type(part) for part in item] != [int, int, str]
                or item[2] not in files
            ):
                raise InputError(f"{where}[{index}] must be [start, end, key of a file]")
            start, end, key = item
            if not before <= start < end <= len(loss_mask) or loss_mask[start:end].any():
                raise InputError(
                    f"{where}[{index}]: [{start}, {end}) must be tokens after {before} that were not sampled"
                )
            found.append(PlacedImage(start, end, key, files[key]))
            before = end
        if unplaced := files.keys() - {image.key for image in found}:
            raise InputError(f"{fields.where}.image_files has files without a place: {sorted(unplaced)[0]}")
        return tuple(found) or None

    def check_files(self, value: Sequence[PlacedImage], where: str) -> None:
        """See `Kind`."""
        for key, data in {image.key: image.data for image in value}.items():
            decode_image(data, f"{where}: image {key}")

    def padded(self, values: Sequence[Sequence[PlacedImage] | None], width: int) -> Placed:
        """See `Kind`."""
        return [value or () for value in values]

    def keys(self, value: Sequence[PlacedImage], length: int) -> None:
        """See `Kind`: models that read images take no trees."""

    def columns(self, value: Sequence[PlacedImage]) -> dict[str, Any]:
        """See `Kind`: none, the rows of trajectories have their own columns of images."""
        return {}

    def token_ids(self, value: Sequence[PlacedImage]) -> dict[str, np.ndarray]:
        """See `Kind`."""
        return {}
