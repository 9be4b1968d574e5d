"""What members of an outer optimizer exchange: one fragment's values as a safetensors body, in 32, 8 or 4 bits.

In 32 bits NAME holds the values. In fewer NAME.codes and NAME.scales hold what `algo.blockwise` makes of them. Whoever
encodes also learns what its receivers will read. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from asyncrl.errors import InputError
from asyncrl.extensions.outer.algo.blockwise import BLOCK, code_shape, dequantize, quantize

WHOLE_BITS = 32
Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of a fragment's parameters, by name."""


def encode(values: Mapping[str, np.ndarray], bits: int) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return `(body, what `decode` will return)` of float32 values."""
    if bits == WHOLE_BITS:
        return save({name: np.asarray(one, order="C") for name, one in values.items()}), dict(values)
    tensors: dict[str, np.ndarray] = {}
    read: dict[str, np.ndarray] = {}
    for name, one in values.items():
        codes, scales = quantize(one.reshape(-1), bits)
        tensors |= {f"{name}.codes": codes, f"{name}.scales": scales}
        read[name] = dequantize(codes, scales, bits, one.size).reshape(one.shape)
    return save(tensors), read


def decode(body: bytes, shapes: Shapes, bits: int) -> dict[str, np.ndarray]:
    """Return the float32 values of a body. Raises `InputError` for other names, shapes or types, and for values that
    are not finite."""
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"not a safetensors body: {error}") from error
    expected = _layout(shapes, bits)
    for name in sorted(expected.keys() ^ tensors.keys())[:1]:
        raise InputError(f"{name}: {'is missing' if name in expected else 'is no parameter of the fragment'}")
    for name, (kind, shape) in expected.items():
        found = tensors[name]
        if (found.dtype, found.shape) != (kind, shape):
            raise InputError(f"{name}: must be {kind} {shape}, got {found.dtype} {found.shape}")
        if kind == np.float32 and not np.isfinite(found).all():
            raise InputError(f"{name}: has values that are not finite")
    if bits == WHOLE_BITS:
        return tensors
    return {
        name: dequantize(tensors[f"{name}.codes"], tensors[f"{name}.scales"], bits, math.prod(shape)).reshape(
            shape
        )
        for name, shape in shapes.items()
    }


def body_bytes(shapes: Shapes, bits: int) -> int:
    """Return the most bytes that a body of these parameters may have."""
    layout = _layout(shapes, bits)
    values = sum(math.prod(shape) * kind.itemsize for kind, shape in layout.values())
    # Beside the values there is a header with each name, type, shape and place.
    return values + sum(256 + 6 * len(name) for name in layout) + 1024


def _layout(shapes: Shapes, bits: int) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Return type and shape of each tensor of a body."""
    if bits == WHOLE_BITS:
        return {name: (np.dtype(np.float32), tuple(shape)) for name, shape in shapes.items()}
    codes = np.dtype(np.int8 if bits == 8 else np.uint8)
    found: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        numel = math.prod(shape)
        found[f"{name}.codes"] = (codes, code_shape(numel, bits))
        found[f"{name}.scales"] = (np.dtype(np.float32), (-(-numel // BLOCK),))
    return found
