"""Rows with images through a vision model: what the tokens of an image are replaced by, and where they stand.

The model's own `forward` finds images by their token, which a policy may also sample. Here images stand where their
trajectory says, as in the engine; a sampled image token is one like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.extensions.vision.processor import ImageProcessor
from asyncrl.extensions.vision.token_extra import Placed
from asyncrl.train.models.policy import Extras
from asyncrl.types import IMAGES


@dataclass(frozen=True, slots=True)
class RowImages:
    """The images of B rows of T tokens."""

    pixel_values: Tensor
    """[N,D] float32: patches of the I distinct images. Where no row has an image, one that no place reads."""
    grid_thw: Tensor
    """[I,3] int64: patches of each image in time, height and width."""
    places: Tensor
    """[B,T] bool: the tokens that stand for a part of an image."""
    parts: Tensor
    """[K] int64: for each of these, row by row, which part of all images it stands for: an index into the S tokens that
    the I images have."""
    positions: Tensor
    """[3,B,T] int64: of each token in time, height and width."""

    def to(self, device: torch.device) -> RowImages:
        """Return them on `device`."""
        return RowImages(*(getattr(self, name).to(device) for name in self.__slots__))


def row_images(processor: ImageProcessor, rows: Placed, shape: tuple[int, int]) -> RowImages:
    """Return the images of rows padded to `shape` [B,T].

    An image that several rows show, as the episodes of a group do, is there once.
    """
    places = np.zeros(shape, bool)
    positions = np.empty((3, *shape), np.int64)
    pixels, grids, parts = [], [], [np.empty(0, np.int64)]
    first: dict[str, int] = {}
    total = 0
    for row in range(shape[0]):
        placed = rows[row] if row < len(rows) else ()
        spans = []
        for image in placed:
            values, grid = processor.pixels(image)
            places[row, image.start : image.end] = True
            height, width = (int(side) for side in grid[1:] // processor.merge_size)
            spans.append((image.start, height, width))
            size = image.end - image.start
            if image.key not in first:
                first[image.key] = total
                total += size
                pixels.append(values)
                grids.append(grid)
            parts.append(first[image.key] + np.arange(size))
        positions[:, row] = token_positions(shape[1], spans)
    if not pixels:
        # Every rank runs the vision tower in every micro-batch: its parameters are gathered and reduced together.
        side = processor.merge_size
        pixels.append(np.zeros((side**2, processor.patch_values), np.float32))
        grids.append(np.array([1, side, side], np.int64))
    return RowImages(
        torch.from_numpy(np.concatenate(pixels)),
        torch.from_numpy(np.stack(grids)),
        torch.from_numpy(places),
        torch.from_numpy(np.concatenate(parts)),
        torch.from_numpy(positions),
    )


def token_positions(length: int, images: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return [3,length] positions in time, height and width (M-RoPE, Qwen2-VL, arXiv 2409.12191).

    images: `(start, height, width)` of each, in tokens. A text token has its place three times. An image's tokens have
    one time and their row and column, counted from there; what follows begins after the larger of its sides.
    """
    positions = np.empty((3, length), np.int64)
    done = following = 0
    for start, height, width in images:
        positions[:, done:start] = following + np.arange(start - done)
        following += start - done
        done = start + height * width
        positions[:, start:done] = following + np.indices((1, height, width)).reshape(3, -1)
        following += max(height, width)
    positions[:, done:] = following + np.arange(length - done)
    return positions


def run_vision_trunk(trunk: Any, token_ids: Tensor, images: RowImages) -> Tensor:
    """Return the hidden states [B,T,H] of a vision model's trunk."""
    embedded = trunk.get_input_embeddings()(token_ids)
    seen = trunk.get_image_features(images.pixel_values.to(embedded.dtype), images.grid_thw, return_dict=True)
    features = torch.cat(seen.pooler_output).to(embedded.dtype)
    levels = [torch.cat(level) for level in getattr(seen, "deepstack_features", None) or ()]
    if not bool(images.places.any()):
        # What nothing reads still takes part in the backward pass.
        embedded = embedded + 0 * sum(part.sum() for part in (features, *levels))
        levels = []
    else:
        embedded = embedded.masked_scatter(images.places[..., None], features[images.parts])
        levels = [level[images.parts] for level in levels]
    deep = {"visual_pos_masks": images.places, "deepstack_visual_embeds": levels} if levels else {}
    return trunk.language_model(
        inputs_embeds=embedded, position_ids=images.positions, use_cache=False, **deep
    ).last_hidden_state


@dataclass(frozen=True, slots=True)
class VisionRows:
    """Implements `RunRows` for a vision model, whose rows may have images."""

    processor: ImageProcessor

    def __call__(self, trunk: Any, token_ids: Tensor, extras: Extras, more: Mapping[str, Tensor]) -> Tensor:
        shape = (token_ids.shape[0], token_ids.shape[1])
        images = row_images(self.processor, extras.get(IMAGES, ()), shape)
        return run_vision_trunk(trunk, token_ids, images.to(token_ids.device))
