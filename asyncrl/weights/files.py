"""Weights on a shared file system: one safetensors file per version, written atomically and checksummed.

On one machine the directory is shared memory, so a publish is one write and one memory map. The file is written under
a temporary name, flushed and renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from asyncrl.errors import InputError, UnavailableError
from asyncrl.weights.chunks import WHOLE, file_checksum


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
    """xxh3-128 of the file's bytes, hexadecimal."""
    num_bytes: int
    epoch: int = 0
    """Counts the starts of the trainer: after a crash it may publish a version again. 0 for weights of no run."""
    forms: Mapping[str, ShortForm] = field(default_factory=dict, hash=False)
    """Its short forms that were written, by their kinds (`chunks.SHORT_KINDS`)."""

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


def on_cpu(tensors: Iterable[tuple[str, torch.Tensor]], copy: bool = False) -> dict[str, torch.Tensor]:
    """Return the tensors in host memory by name; of tensors that share storage, only the first.

    copy: those that are there already, too, since they will change.
    """
    unique: dict[str, torch.Tensor] = {}
    alive: dict[int, torch.Tensor] = {}
    for name, tensor in tensors:
        kept = tensor.detach().contiguous().cpu()
        # Tensors must stay alive here: the address of a freed one may be used again.
        if kept.data_ptr() not in alive:
            alive[kept.data_ptr()] = kept
            unique[name] = kept.clone() if copy and kept.data_ptr() == tensor.data_ptr() else kept
    return unique


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
        save_file(unique, str(partial), metadata={"version": f"{version:08d}"})
        checksum, num_bytes = file_checksum(partial), partial.stat().st_size
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UnavailableError(f"weights of version {version}: {path} cannot be written: {error}") from error
    return WeightFile(version, str(path), checksum, num_bytes, epoch)


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
    checksum = file_checksum(file.path)
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
