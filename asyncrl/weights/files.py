"""Weights on a shared file system: one safetensors file per version, written atomically and checksummed.

On one machine the directory is shared memory, so a publish is one write and one memory map. The file is written under
a temporary name, flushed and renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open

from asyncrl.disk import write_at
from asyncrl.errors import InputError, UnavailableError
from asyncrl.weights import chunks
from asyncrl.weights.chunks import WHOLE, parts_checksum

ALIGNED_BYTES = 8
"""What the header's length is a multiple of."""
NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What the format calls them."""


@dataclass(frozen=True, slots=True)
class ShortForm:
    """A shorter file, out of which and of other weights an engine makes a weight file."""

    path: str
    num_bytes: int
    base_checksum: str
    """The checksum of these weights."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A published set of weights: what an engine needs to find and verify it."""

    version: int
    path: str
    checksum: str
    """`chunks.parts_checksum` of the file, hexadecimal."""
    num_bytes: int
    epoch: int = 0
    """Counts the starts of the trainer: after a crash it may publish a version again. 0 for weights of no run."""
    forms: Mapping[str, ShortForm] = field(default_factory=dict, hash=False)
    """Its short forms that were written, by their kinds (`chunks.short_kinds`)."""

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        return found | found.pop("forms")

    def kind_for(self, base: str) -> str:
        """Return which kind an engine needs that has loaded weights of the checksum `base`."""
        fits = [kind for kind, form in self.forms.items() if form.base_checksum == base]
        return fits[0] if fits else WHOLE

    def source(self, kind: str) -> tuple[str, int]:
        """Return where a kind lies, and its size in bytes."""
        form = self if kind == WHOLE else self.forms[kind]
        return form.path, form.num_bytes


class HostCopies:
    """Host memory for the tensors of one model, which is kept from one version to the next.

    A copy into memory that is fresh each time takes several times as long: the kernel hands out its pages one by one.
    What comes from a GPU goes into pinned memory, to which the GPU writes by itself.
    """

    def __init__(self) -> None:
        self._places: dict[str, torch.Tensor] = {}
        self.made = 0
        """How often memory was taken for a tensor."""

    def of(
        self, tensors: Iterable[tuple[str, torch.Tensor]], always: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return the tensors in host memory by name; of tensors that share storage there, only the first.

        What an earlier call returned is overwritten. always: copy those that are there already, too, since they will
        change.
        """
        found: dict[str, torch.Tensor] = {}
        alive: dict[int, torch.Tensor] = {}
        on_gpu = False
        for name, tensor in tensors:
            source = tensor.detach()
            if source.device.type == "cpu":
                source = source.contiguous()
                # Tensors must stay alive here: the address of a freed one may be used again.
                if source.data_ptr() in alive:
                    continue
                alive[source.data_ptr()] = source
            on_gpu |= source.device.type == "cuda"
            if source.device.type != "cpu" or (always and source.data_ptr() == tensor.data_ptr()):
                found[name] = self._place(name, source).copy_(source, non_blocking=True)
            else:
                found[name] = source
        if on_gpu:
            torch.cuda.synchronize()
        return found

    def _place(self, name: str, source: torch.Tensor) -> torch.Tensor:
        place = self._places.get(name)
        if place is None or (place.shape, place.dtype) != (source.shape, source.dtype):
            self.made += 1
            pinned = source.device.type == "cuda"
            place = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
            self._places[name] = place
        return place


def on_cpu(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the tensors in host memory by name; of tensors that share storage there, only the first."""
    return HostCopies().of(tensors)


def weights_path(directory: str | Path, version: int) -> Path:
    """Return the path of the weights of `version`, which may not exist."""
    return Path(directory) / f"weights-{version:08d}.safetensors"


def write_weights(
    directory: str | Path, version: int, tensors: Iterable[tuple[str, torch.Tensor]], epoch: int = 0
) -> WeightFile:
    """Write `tensors` as the weights of `version` and return where they are.

    Shared storage (tied embeddings) is stored once: only the first name is kept, as checkpoints do. Raises
    `UnavailableError` if the disk cannot be written.
    """
    directory = Path(directory)
    path = weights_path(directory, version)
    partial = path.with_suffix(f".partial-{os.getpid()}")
    unique = on_cpu(tensors)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        checksum, num_bytes = write_tensors(partial, unique, {"version": f"{version:08d}"})
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UnavailableError(f"weights of version {version}: {path} cannot be written: {error}") from error
    return WeightFile(version, str(path), checksum, num_bytes, epoch)


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> tuple[str, int]:
    """Write contiguous tensors of host memory; return the file's `parts_checksum` and its bytes.

    In parts, each by a thread that also computes its checksum: where the file is memory, one thread is limited by the
    pages that the kernel hands out, and would read all of it once more for the checksum. Format:
    https://github.com/huggingface/safetensors#format

    Raises OSError, KeyError for a type that the format does not have.
    """
    head, pieces = _laid_out(tensors, metadata)
    total = pieces[-1][0] + len(pieces[-1][1]) if pieces else len(head)
    pieces = [(0, memoryview(head)), *pieces]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        # Room that turns out to be missing is an error here, not in the middle.
        os.posix_fallocate(descriptor, 0, total)

        def part(start: int) -> bytes:
            digest = xxhash.xxh3_128()
            for at, content in _within(pieces, start, min(start + chunks.PART_BYTES, total)):
                digest.update(content)
                write_at(descriptor, content, at)
            return digest.digest()

        with ThreadPoolExecutor(chunks.THREADS) as pool:
            digests = list(pool.map(part, range(0, total, chunks.PART_BYTES)))
    finally:
        os.close(descriptor)
    return chunks.joined_checksum(digests), total


def _laid_out(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> tuple[bytes, list[tuple[int, memoryview]]]:
    """Return the head of the file, and what follows: the bytes of each tensor and where in the file they begin."""
    # Wide elements first, so that every tensor is aligned.
    order = sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0]))
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in order:
        start, end = end, end + tensor.numel() * tensor.element_size()
        described[name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end],
        }  # fmt: skip
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED_BYTES)
    head = len(text).to_bytes(8, "little") + text
    pieces, at = [], len(head)
    for _, tensor in order:
        if tensor.numel():
            pieces.append((at, tensor.reshape(-1).view(torch.uint8).numpy().data))
            at += len(pieces[-1][1])
    return head, pieces


def _within(pieces: list[tuple[int, memoryview]], start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
    """Yield what lies between two places of the file, and where."""
    for at, content in pieces:
        first, last = max(start, at), min(stop, at + len(content))
        if first < last:
            yield first, content[first - at : last - at]


def verify_weights(file: WeightFile) -> float:
    """Check that the file exists, complete and unchanged; return the seconds it took.

    Raises `InputError` naming the file and what differs.
    """
    start = time.perf_counter()
    try:
        num_bytes = os.stat(file.path).st_size
    except OSError as error:
        raise InputError(f"weights of version {file.version}: cannot read {file.path}: {error}") from error
    if num_bytes != file.num_bytes:
        raise InputError(
            f"weights of version {file.version}: {file.path} has {num_bytes} bytes, expected {file.num_bytes}"
        )
    checksum = parts_checksum(file.path)
    if checksum != file.checksum:
        raise InputError(
            f"weights of version {file.version}: {file.path} has checksum {checksum}, expected {file.checksum}"
        )
    return time.perf_counter() - start


def read_weights(path: str | Path, device: str = "cpu") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `(name, tensor)` from a weight file, memory-mapped, one tensor at a time."""
    with safe_open(str(path), framework="pt", device=device) as file:
        for name in file.keys():  # noqa: SIM118 - not a dict: safe_open has no iterator
            yield name, file.get_tensor(name)


def remove_older(directory: str | Path, keep_version: int, but: Collection[int] = ()) -> None:
    """Delete the files of versions below `keep_version` other than those in `but`, and partial files of writers that
    died."""
    for path in Path(directory).glob("weights-*"):
        digits = path.stem.removeprefix("weights-").split(".")[0]
        old = digits.isdigit() and int(digits) < keep_version and int(digits) not in but
        if path.suffix.startswith(".partial") or old:
            path.unlink(missing_ok=True)
