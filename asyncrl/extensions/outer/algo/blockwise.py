"""Values in 8 or 4 bits with a scale for each block, as pseudo-gradients and updates are exchanged.

    s = max |x| / q over a block of 256        code = round(x / s)        q = 127 of 8 bits, 7 of 4

Symmetric, rounded to the nearest. What rounding takes is not lost: who sends adds it to what is sent next (error
feedback, arXiv 1901.09847). Streaming DiLoCo (arXiv 2501.18512) sends 4-bit floats instead. Torch-free.
"""

from __future__ import annotations

import numpy as np

BLOCK = 256
LARGEST = {8: 127, 4: 7}
"""The largest code, by bits."""


def quantize(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `(codes, scales)` of values [N]: int8 [N], or uint8 [ceil(N / 2)] of two codes each, and a float32 scale
    for each block."""
    largest = LARGEST[bits]
    blocks = _in_blocks(values)
    scales = np.abs(blocks).max(axis=1, initial=0.0).astype(np.float32) / np.float32(largest)
    safe = np.where(scales > 0, scales, np.float32(1.0))
    rounded = np.rint(blocks / safe[:, None]).clip(-largest, largest).astype(np.int8).reshape(-1)
    codes = rounded[: len(values)]
    return (codes if bits == 8 else _packed(codes)), scales


def dequantize(codes: np.ndarray, scales: np.ndarray, bits: int, numel: int) -> np.ndarray:
    """Return the values [numel] in float32 that `quantize` rounded to."""
    whole = codes if bits == 8 else _unpacked(codes)[:numel]
    blocks = _in_blocks(whole.astype(np.float32)) * scales[:, None]
    return blocks.reshape(-1)[:numel]


def code_shape(numel: int, bits: int) -> tuple[int, ...]:
    """Return the shape of the codes of so many values."""
    return (numel,) if bits == 8 else (-(-numel // 2),)


def _in_blocks(values: np.ndarray) -> np.ndarray:
    """Return float32 [blocks, BLOCK], the last block filled up with zeros."""
    filled = np.zeros(-(-len(values) // BLOCK) * BLOCK, np.float32)
    filled[: len(values)] = values
    return filled.reshape(-1, BLOCK)


def _packed(codes: np.ndarray) -> np.ndarray:
    """Return two codes from -7 to 7 in each byte, the first in the lower half."""
    halves = np.zeros(2 * -(-len(codes) // 2), np.uint8)
    halves[: len(codes)] = (codes + 8).astype(np.uint8)
    return halves[0::2] | (halves[1::2] << 4)


def _unpacked(packed: np.ndarray) -> np.ndarray:
    both = np.stack([packed & 0x0F, packed >> 4], axis=1).reshape(-1)
    return both.astype(np.int8) - 8
