"""The wire form of arrays: `{"dtype": "<i4", "shape": [L], "data": bytes}`, little-endian."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncrl.data.fields import Fields
from asyncrl.errors import InputError
from asyncrl.types import MAX_TRAJECTORY_TOKENS


def array_to_map(array: np.ndarray, wire_dtype: str, name: str) -> dict[str, Any]:
    """Return an array [L] in its wire form. Raises `InputError` for values that `wire_dtype` does not hold."""
    dtype = np.dtype(wire_dtype)
    array = np.asarray(array)
    if not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise InputError(f"{name} must be {dtype}, got {array.dtype}")
    narrowed = array.astype(dtype, copy=False)
    if dtype.kind == "i" and array.dtype.itemsize > dtype.itemsize and not np.array_equal(narrowed, array):
        raise InputError(f"{name} must fit {dtype}, got values up to {array.max()}")
    return {"dtype": wire_dtype, "shape": list(array.shape), "data": narrowed.tobytes()}


def array_from_map(raw: dict[str, Any], dtype: str, where: str) -> np.ndarray:
    """Return an array [L] of `dtype` from its wire form, a read-only view. Raises `InputError`."""
    fields = Fields(raw, where)
    given, shape, data = fields.take("dtype", str), fields.take("shape", list), fields.take("data", bytes)
    fields.close()
    if given != dtype:
        raise InputError(f"{where}.dtype must be {dtype!r}, got {given[:16]!r}")
    if len(shape) != 1 or type(shape[0]) is not int or not 0 <= shape[0] <= MAX_TRAJECTORY_TOKENS:
        raise InputError(
            f"{where}.shape must be [L] with L at most {MAX_TRAJECTORY_TOKENS}, got {str(shape)[:64]}"
        )
    if len(data) != shape[0] * np.dtype(dtype).itemsize:
        raise InputError(f"{where}.data must have {shape[0]} items of {dtype}, got {len(data)} bytes")
    # The highest byte is found in a twentieth of the time that counting takes.
    if dtype == "|b1" and data and np.frombuffer(data, np.uint8).max() > 1:
        raise InputError(f"{where}.data must hold only 0 and 1")
    return np.frombuffer(data, dtype)
