"""The bytes of a weight file over a torch.distributed group: the trainer's first rank and every rank of every engine.

The group is apart from the default groups of both sides: NCCL where every rank has a GPU of its own, gloo otherwise.
The file travels in buckets of bytes, so both sides need the same few lines for any dtype, and what arrives has the
checksum of what was sent. The ranks of one engine share what they write down, bucket by bucket.

The store by which the ranks find each other asks for no token. It listens on the one address that the engines are told,
while a group exists, and the group's name, which only engines are told, is part of every key. Like NCCL and gloo
themselves it is for a network that others cannot reach.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from asyncrl.endpoint import route_to

BUCKET_BYTES = 64 * 2**20
CPU = "cpu"
_BLOCKING = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""A lost peer must raise where it is waited for; by default NCCL's watchdog would end the whole process."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """One rank's place in a group, in plain numbers and text."""

    name: str
    host: str
    """Address of the store, and thereby the network to use."""
    port: int
    rank: int
    size: int
    backend: str
    """"nccl" or "gloo"."""
    timeout_s: float
    """For joining, and for each bucket."""


def choose_backend(devices: Sequence[str]) -> str:
    """Return "nccl" if every rank has a GPU of its own, else "gloo". `devices`: CPU, or what tells GPUs apart."""
    return "gloo" if CPU in devices or len(set(devices)) < len(devices) else "nccl"


def device_name(device: torch.device) -> str:
    """Return what tells this device apart from those of other processes."""
    if device.type == CPU:
        return CPU
    return f"{socket.gethostname()}/{torch.cuda.get_device_properties(device).uuid}"


@contextlib.contextmanager
def listening(host: str) -> Iterator[socket.socket]:
    """Give a listening socket on a free port of one address, for the store."""
    family = socket.getaddrinfo(host, None)[0][0]
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        sock.listen()
        yield sock


class Group:
    """A joined group. Constructing it waits for all others, up to the deadline; raises RuntimeError or OSError."""

    def __init__(
        self, place: GroupPlace, device: torch.device, listener: socket.socket | None = None
    ) -> None:
        """listener: given on the rank that hosts the store, which takes it over."""
        self.place = place
        self.device = device if place.backend == "nccl" else torch.device(CPU)
        timeout = timedelta(seconds=place.timeout_s)
        store = dist.TCPStore(
            place.host,
            place.port,
            is_master=listener is not None,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach() if listener is not None else None,
        )
        prefixed = dist.PrefixStore(place.name, store)
        make = _nccl if place.backend == "nccl" else _gloo
        self._backend = make(prefixed, place, timeout)
        self._timeout = timeout

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fill `tensor` with rank 0's. Raises RuntimeError if a peer is lost or too slow, or the group given up."""
        if self._backend is None:
            raise RuntimeError("the group was given up")
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._backend.broadcast([tensor], options).wait(self._timeout)

    def abort(self) -> None:
        """Give the group up without the others, whose transfers end with an error."""
        if self._backend is not None:
            with contextlib.suppress(RuntimeError):
                self._backend.abort()
        # What gloo closes its connections by.
        self._backend = None


def _gloo(store: dist.Store, place: GroupPlace, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    # By default gloo takes the address of the host's name, which may be one that others cannot reach.
    options._devices = [gloo.create_device(hostname=route_to(place.host))]
    return gloo(store, place.rank, place.size, options)


def _nccl(store: dist.Store, place: GroupPlace, timeout: timedelta) -> Any:
    before = {key: os.environ.get(key) for key in _BLOCKING}
    os.environ.update(_BLOCKING)
    try:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, place.rank, place.size, options)
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


@contextlib.contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, work on this device in a stream of its own: decoding or training would wait for it in theirs."""
    if device.type == CPU:
        yield
        return
    torch.cuda.set_device(device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        yield


def send_file(group: Group, path: str | Path) -> None:
    """Send a file's bytes to all other ranks. Raises RuntimeError, OSError."""
    source = _mapped(path, os.stat(path).st_size, shared=False)
    with own_stream(group.device):
        for bucket in source.split(BUCKET_BYTES):
            group.broadcast(bucket.to(group.device))


def receive_file(group: Group, path: str | Path, part: int, parts: int) -> None:
    """Receive a file's bytes into the file `path`, which has its full size already.

    part: of `parts` receivers that fill this file together, which one this is. Raises RuntimeError, OSError.
    """
    target = _mapped(path, os.stat(path).st_size, shared=True)
    on_host = group.device.type == CPU
    scratch = torch.empty(0, dtype=torch.uint8)
    for number, bucket in enumerate(target.split(BUCKET_BYTES)):
        own = number % parts == part
        if not (own and on_host) and scratch.numel() < bucket.numel():
            scratch = torch.empty(bucket.numel(), dtype=torch.uint8, device=group.device)
        received = bucket if own and on_host else scratch[: bucket.numel()]
        group.broadcast(received)
        if own and not on_host:
            bucket.copy_(received)


def _mapped(path: str | Path, num_bytes: int, shared: bool) -> torch.Tensor:
    return torch.from_file(str(path), shared=shared, size=num_bytes, dtype=torch.uint8)
