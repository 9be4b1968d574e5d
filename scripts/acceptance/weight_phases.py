"""Phases that move weights: between device and host, into files, to an engine, over a group."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from acceptance.context import Context
from acceptance.measure import (
    EAGER,
    NEEDS_CUDA,
    QWEN3,
    Found,
    device,
    dtype,
    model,
    seconds,
    tried,
    words,
)
from bench.report import Figure, Omitted

ELEMENTS = {"0.6B": 596e6, "1.7B": 1720e6, "4B": 4022e6}
"""Parameters of the shapes."""
SHARED = Path("/dev/shm")
TENSORS = 64
"""So many a version is made of."""


def copy_rates(context: Context) -> Iterator[Found]:
    """Bytes a second between device and host, through each kind of host memory that publishing could use."""
    import torch

    where, size = device(), 2**30 if context.gpus else 2**26
    source = torch.ones(size, dtype=torch.uint8, device=where)
    reused = torch.empty(size, dtype=torch.uint8)
    with _shared_memory(size) as folder:
        memory = "shared memory" if folder.is_relative_to(SHARED) else "a file"
        mapped = _mapped(folder / "copied", size)
        kinds: dict[str, Callable[[], Any]] = {
            "fresh pages": lambda: source.to("cpu", copy=True),
            "reused pages": lambda: reused.copy_(source),
            memory: lambda: mapped.copy_(source),
        }
        if context.gpus:
            pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            kinds["pinned"] = lambda: pinned.copy_(source, non_blocking=True)
        else:
            yield Omitted("to the host, pinned", NEEDS_CUDA)
        for name, work in kinds.items():
            yield Figure(f"to the host, {name}", size / seconds(work) / 1e9, "GB/s")
        both = {
            "to the host": lambda: mapped.copy_(source, non_blocking=True),
            "to the device": lambda: source.copy_(mapped, non_blocking=True),
        }
        if context.gpus:
            with registered(mapped):
                for way, work in both.items():
                    yield Figure(f"{way}, registered {memory}", size / seconds(work) / 1e9, "GB/s")
        else:
            yield from (Omitted(f"{way}, registered {memory}", NEEDS_CUDA) for way in both)
        yield Figure("to the device, pageable", size / seconds(lambda: source.copy_(reused)) / 1e9, "GB/s")


def publish_breakdown(context: Context) -> Iterator[Found]:
    """What a version takes, each part apart: gathering, writing, checking, reading; then an engine's own parts."""
    for name in QWEN3 if context.gpus else ("0.6B",):
        yield from tried(name, partial(_published, context, name))
    yield from tried("engine", partial(_into_an_engine, context))


def _published(context: Context, name: str) -> Iterator[Found]:
    import torch

    from asyncrl.weights.chunks import parts_checksum
    from asyncrl.weights.files import HostCopies, WeightFile, read_weights, verify_weights, write_tensors

    each = int((ELEMENTS[name] if context.gpus else 4e6) / TENSORS)
    tensors = [(f"w{n}", torch.ones(each, dtype=torch.bfloat16, device=device())) for n in range(TENSORS)]
    size = TENSORS * each * 2
    yield Figure(f"{name}: version", size / 1e9, "GB")
    with _shared_memory(size) as folder:
        copied: dict[str, torch.Tensor] = {}
        host = HostCopies()
        # Into pinned memory on a GPU. What is in host memory already is copied here as on the trainer's host.
        for when in ("first", "again"):
            took_s = seconds(lambda: copied.update(host.of(tensors, always=True)), 1)
            yield Figure(f"{name}: gathered, {when}", took_s, "s")
        path, written = folder / "weights.safetensors", []
        took_s = seconds(lambda: written.append(write_tensors(path, copied, {})), 1)
        yield Figure(f"{name}: written with its checksum", took_s, "s")
        ((checksum, num_bytes),) = written
        yield Figure(f"{name}: prepared", verify_weights(WeightFile(1, str(path), checksum, num_bytes)), "s")
        yield Figure(
            f"{name}: read to the device", seconds(lambda: list(read_weights(path, device())), 1), "s"
        )
        path.unlink()
        target = folder / "straight"
        mapped = _mapped(target, size).view(torch.bfloat16)
        places = mapped.split(each)

        def straight() -> None:
            for (_, tensor), place in zip(tensors, places, strict=True):
                place.copy_(tensor, non_blocking=True)

        yield Figure(f"{name}: straight into the file", seconds(straight, 1), "s")
        if context.gpus:
            start = time.perf_counter()
            with registered(mapped):
                yield Figure(f"{name}: registering the file", time.perf_counter() - start, "s")
                took_s = seconds(straight, 1)
                yield Figure(f"{name}: straight into the registered file", took_s, "s")
                loaded = torch.empty(TENSORS * each, dtype=torch.bfloat16, device=device())
                took_s = seconds(lambda: loaded.copy_(mapped, non_blocking=True), 1)
                yield Figure(f"{name}: read from the registered file", took_s, "s")
        else:
            yield Omitted(f"{name}: straight into the registered file", NEEDS_CUDA)
        yield Figure(f"{name}: checksum of the file", seconds(lambda: parts_checksum(target), 1), "s")


def _into_an_engine(context: Context) -> Iterator[Found]:
    """Yield the parts of a version's way into a real engine, which has nothing else to do."""
    from asyncrl.weights.files import read_weights, write_weights

    path = model(context, "0.6B")
    size = 2 * (path / "model.safetensors").stat().st_size
    with (
        _shared_memory(size) as folder,
        context.engine(path, dtype(context), weights=folder, extra_args=EAGER) as (url, token),
    ):
        for version, when in enumerate(("first", "again"), start=1):
            tensors = read_weights(path / "model.safetensors", device())
            file = write_weights(folder, version, tensors, epoch=1)
            yield Figure(f"engine, {when}: version", file.num_bytes / 1e9, "GB")
            for name, value in asyncio.run(publish(url, token, file)).items():
                yield Figure(f"engine, {when}: {name}", value, "s")


async def publish(url: str, token: str, file: Any, **options: Any) -> dict[str, float]:
    """Bring a version to an engine; return the seconds of each part. options: of the commit."""
    from asyncrl.services.engine.control import EngineControl

    control = EngineControl(url, token)
    try:
        start = time.perf_counter()
        prepared = await control.request("weights/prepare", file.to_json())
        between = time.perf_counter()
        committed = await control.request("weights/commit", file.to_json() | options)
        return {
            "prepare": between - start,
            "its checksum": prepared["verify_s"],
            "commit": time.perf_counter() - between,
            "pause": committed["pause_s"],
        }
    finally:
        await control.close()


def one_rank(context: Context) -> Iterator[Found]:
    """A group of one rank and what a run does over it: all-reduce, a weight file sent and received, and the weights of
    the version before put in the model's place and taken out under ZeRO-3."""
    yield from tried("group for weights", partial(_over_a_group, context))
    yield from tried("log-probability check", partial(_swapped, context))


def _over_a_group(context: Context) -> Iterator[Found]:
    """Yield what a weight file takes over a group. With one rank nothing travels: what is left are the copies between
    file and device, and the library's own time."""
    import torch

    from asyncrl.extensions.collective_weights.group import (
        CPU,
        Group,
        GroupPlace,
        choose_backend,
        device_name,
        listening,
        receive_file,
        send_file,
    )

    # Streams are made on a numbered device.
    where = torch.device("cuda", torch.cuda.current_device()) if context.gpus else torch.device(CPU)
    backend = choose_backend([device_name(where)])
    assert backend == ("gloo" if where.type == CPU else "nccl")
    size = int(2 * ELEMENTS["0.6B"]) if context.gpus else 2**25
    with _shared_memory(2 * size) as folder, listening("127.0.0.1") as listener:
        place = GroupPlace("acceptance", "127.0.0.1", listener.getsockname()[1], 0, 1, backend, 30.0)
        start = time.perf_counter()
        group = Group(place, where, listener)
        try:
            tensor = torch.ones(2**20, device=group.device)
            group.broadcast(tensor)
            yield Figure(f"{backend}: joined", time.perf_counter() - start, "s")
            sent, received = folder / "sent", folder / "received"
            _mapped(sent, size).fill_(1)
            _mapped(received, size)
            for name, work in (
                ("sent", lambda: send_file(group, sent)),
                ("received", lambda: receive_file(group, received, 0, 1)),
            ):
                yield Figure(f"{backend}: a file {name}", size / seconds(work, 2) / 1e9, "GB/s")
        finally:
            group.abort()


def _swapped(context: Context) -> Iterator[Found]:
    import torch

    from asyncrl.config import load_config
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.models.loading import load_policy

    config = load_config("gridworld_grpo", words(context, 128, "train.zero_stage=3"))
    engine = TrainEngine(
        load_policy(str(model(context, "0.6B")), config.model.dtype), config.train, config.model.dtype
    )
    tensor = torch.ones(2**20, device=engine.device)
    yield Figure("all-reduce of one rank", seconds(lambda: torch.distributed.all_reduce(tensor)) * 1e3, "ms")
    before = {name: weight.clone() for name, weight in engine.weights()}
    shares = engine.kept_shares
    yield Figure("kept, first", seconds(lambda: shares.keep(0), 1), "s")
    yield Figure("kept, again", seconds(lambda: shares.keep(1), 1), "s")

    def swap() -> None:
        with shares.swapped():
            pass

    yield Figure("swapped and put back, first", seconds(swap, 1), "s")
    yield Figure("swapped and put back, again", seconds(swap, 1), "s")
    after = dict(engine.weights())
    changed = [name for name, weight in before.items() if not torch.equal(weight, after[name])]
    if changed:
        raise AssertionError(f"{changed[0]} did not come back bit by bit")
    yield Figure("weights that came back bit by bit", float(len(after)))


@contextmanager
def registered(tensor: Any) -> Iterator[None]:
    """Let a GPU read and write host memory by itself while it is open. Raises `RuntimeError` where CUDA refuses."""
    import torch

    cudart: Any = torch.cuda.cudart()
    failed = int(cudart.cudaHostRegister(tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0))
    if failed:
        raise RuntimeError(f"cudaHostRegister: error {failed}")
    try:
        yield
    finally:
        cudart.cudaHostUnregister(tensor.data_ptr())


@contextmanager
def _shared_memory(size: int) -> Iterator[Path]:
    """Give a folder in shared memory, or on a disk where that has not so many bytes."""
    there = SHARED.is_dir() and os.access(SHARED, os.W_OK) and shutil.disk_usage(SHARED).free > size
    with tempfile.TemporaryDirectory(prefix="asyncrl-acceptance-", dir=SHARED if there else None) as folder:
        yield Path(folder)


def _mapped(path: Path, size: int) -> Any:
    """Return the bytes of a new file of that size, mapped."""
    import torch

    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
