"""What changed from one weight file to the next, as a file of its own that makes the new one out of the old.

After a step with a small learning rate most bfloat16 weights are the same as before, since the step is smaller than
half the distance to the next number. Stored are the positions of those that changed, as gaps, and their new bits
combined with the old ones by exclusive or, both split into planes of bytes and compressed by Zstandard.

Layout: 8 bytes of length and a JSON object (`_Header`), then the new file's own header, then the parts in order.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from asyncrl.errors import InputError
from asyncrl.machine import usable_cpus
from asyncrl.weights.files import ShortForm

DELTA = "delta"
"""What versions and metrics call this kind, as the row of `extension.toml` does."""
PART_BYTES = 32 * 2**20
"""The bytes of the new file that are compared and compressed at once."""
WORTH_IT = 0.5
"""A delta above this share of the file's bytes is not kept: it would save less than it costs."""
THREADS = min(16, usable_cpus())


def write_delta(base: str | Path, base_checksum: str, new: str | Path, path: str | Path) -> ShortForm | None:
    """Write what turns `base` into `new`; None if that is not much smaller, or their tensors are laid out differently.

    Raises OSError.
    """
    with _mapped(base) as old_bytes, _mapped(new) as new_bytes:
        head, width = _head(new_bytes), _width(new_bytes)
        if head != _head(old_bytes) or len(old_bytes) != len(new_bytes):
            return None
        starts = range(head, len(new_bytes), PART_BYTES)

        def part(start: int) -> tuple[dict[str, Any], bytes]:
            stop = min(start + PART_BYTES, len(new_bytes))
            return _encode(_elements(old_bytes, start, stop, width), _elements(new_bytes, start, stop, width))

        with ThreadPoolExecutor(THREADS) as pool:
            parts = list(pool.map(part, starts))
        total = head + sum(len(body) for _, body in parts)
        if total > WORTH_IT * len(new_bytes):
            return None
        header = {
            "num_bytes": len(new_bytes), "head": head, "width": width, "part_bytes": PART_BYTES,
            "parts": [described for described, _ in parts],
        }  # fmt: skip
        text = json.dumps(header).encode()
        partial = Path(path).with_suffix(f".partial-{os.getpid()}")
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + new_bytes[:head])
            for _, body in parts:
                file.write(body)
        os.replace(partial, path)
    return ShortForm(str(path), os.stat(path).st_size, base_checksum)


def apply_delta(base: str | Path, delta: str | Path, path: str | Path) -> None:
    """Write into the existing file `path` what `delta` turns `base` into. The caller checks the result's checksum.

    Raises `InputError` for a delta of other weights or a damaged one, OSError.
    """
    try:
        with _mapped(base) as old_bytes, _mapped(delta) as body, open(path, "r+b") as opened:
            length = int.from_bytes(body[:8], "little")
            header = json.loads(body[8 : 8 + length])
            head, width, size = header["head"], header["width"], header["num_bytes"]
            if (len(old_bytes), _head(old_bytes)) != (size, head):
                raise InputError(f"{delta}: made for weights that are laid out differently from {base}")
            with mmap.mmap(opened.fileno(), size) as target, ThreadPoolExecutor(THREADS) as pool:
                target[:head] = body[8 + length : 8 + length + head]

                def part(start: int, described: dict[str, Any], position: int) -> None:
                    stop = min(start + header["part_bytes"], size)
                    target[start:stop] = old_bytes[start:stop]
                    if described["changed"]:
                        stored = body[position : position + described["gaps"] + described["values"]]
                        _xor(target, start, stop, width, *_decode(described, stored, width))

                described_parts = header["parts"]
                sizes = [one["gaps"] + one["values"] for one in described_parts]
                positions = itertools.accumulate(sizes[:-1], initial=8 + length + head)
                starts = range(head, size, header["part_bytes"])
                list(pool.map(part, starts, described_parts, positions))
    except (ValueError, KeyError, TypeError, IndexError, pyarrow.ArrowException) as error:
        raise InputError(f"{delta}: {type(error).__name__}: {error}") from error


def _encode(old: np.ndarray, new: np.ndarray) -> tuple[dict[str, Any], bytes]:
    (positions,) = np.nonzero(old != new)
    if not len(positions):
        return {"changed": 0, "gaps": 0, "values": 0}, b""
    gaps = _compressed(np.diff(positions, prepend=-1).astype("<u4"))
    values = _compressed(old[positions] ^ new[positions])
    return {"changed": len(positions), "gaps": len(gaps), "values": len(values)}, gaps + values


def _decode(described: dict[str, Any], stored: bytes, width: int) -> tuple[np.ndarray, np.ndarray]:
    count = described["changed"]
    gaps = _decompressed(stored[: described["gaps"]], count, 4)
    return np.cumsum(gaps, dtype=np.int64) - 1, _decompressed(stored[described["gaps"] :], count, width)


def _xor(
    target: mmap.mmap, start: int, stop: int, width: int, positions: np.ndarray, changes: np.ndarray
) -> None:
    # A view of a mapped file must be gone before the map is closed: not a local of the caller.
    _elements(target, start, stop, width)[positions] ^= changes


def _compressed(numbers: np.ndarray) -> bytes:
    planes = np.ascontiguousarray(numbers.view(np.uint8).reshape(len(numbers), -1).T)
    return pyarrow.compress(planes.tobytes(), "zstd", asbytes=True)


def _decompressed(stored: bytes, count: int, width: int) -> np.ndarray:
    try:
        planes = pyarrow.decompress(stored, count * width, "zstd", asbytes=True)
    except OSError as error:
        raise ValueError(str(error)) from error
    together = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(width, count).T)
    return together.view(f"<u{width}").reshape(count)


def _elements(data: Any, start: int, stop: int, width: int) -> np.ndarray:
    return np.frombuffer(data, f"<u{width}", (stop - start) // width, start)


def _head(data: Any) -> int:
    """Return where a safetensors file's tensors begin."""
    return 8 + int.from_bytes(data[:8], "little")


def _width(data: Any) -> int:
    """Return the bytes of an element: 2 if all tensors are of 16 bits, else 4 or 1, whatever all sizes divide by."""
    tensors = json.loads(bytes(data[8 : _head(data)]))
    tensors.pop("__metadata__", None)
    bits = {
        int("".join(filter(str.isdigit, one["dtype"].partition("_")[0])) or 8) for one in tensors.values()
    }
    return 2 if bits == {16} else 4 if bits == {32} else 1


class _mapped:
    """Maps a file for reading while it is open."""

    def __init__(self, path: str | Path) -> None:
        self._path = path

    def __enter__(self) -> mmap.mmap:
        with open(self._path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def __exit__(self, *_: object) -> None:
        self._map.close()
