"""A NIXL agent for one transfer: it lends the memory of weight files to other processes, or reads what they lend.

NIXL moves the bytes by its UCX backend: RDMA where the network has it, shared memory or TCP elsewhere. Whoever reaches
an agent's port may read and write the memory of its process, and nothing is encrypted; and the thread that serves
others takes a whole core, idle or not. Both end with the transfer, since an agent lives no longer.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from asyncrl.errors import ConfigError, UnavailableError

log = logging.getLogger("asyncrl.weights")

PIECE_BYTES = 64 * 2**20
"""Read at once. Each piece has its own deadline."""
DEVICES, LOOPBACK = "UCX_NET_DEVICES", "lo"
LOG_LEVEL = "NIXL_LOG_LEVEL"
LOOK_S = 0.0005
MISSING = "engine.weight_transfer: nixl is missing: pip install 'asyncrl[nixl]', or set it to 'http'"


@dataclass(frozen=True, slots=True)
class LentMemory:
    """Where the bytes of a file can be read."""

    metadata: bytes
    """NIXL's, of the agent that lends them: its addresses, and the keys to its memory."""
    address: int
    """The address of the first byte, in that process."""
    num_bytes: int
    same_machine: bool
    """Whether all that take part are on one machine, so that nothing needs to listen on its network."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def lent_memory_from_json(body: Mapping[str, Any]) -> LentMemory:
    """Read a `LentMemory` back. Raises KeyError, TypeError, ValueError."""
    metadata = body["metadata"]
    if not isinstance(metadata, bytes):
        raise TypeError("metadata: must be bytes")
    lent = LentMemory(metadata, int(body["address"]), int(body["num_bytes"]), bool(body["same_machine"]))
    if lent.address <= 0 or lent.num_bytes <= 0:
        raise ValueError("address, num_bytes: must be positive")
    return lent


def check_nixl() -> None:
    """Raise `ConfigError` where the package is missing. Imports nothing."""
    if importlib.util.find_spec("nixl") is None:
        raise ConfigError(MISSING)


class Agent:
    """same_machine: listen on loopback, unless UCX_NET_DEVICES says where. Raises `ConfigError`, `UnavailableError`.

    Whatever NIXL refuses later is an `UnavailableError`. Used by one thread at a time.
    """

    def __init__(self, same_machine: bool) -> None:
        api, bindings = _library()
        self.same_machine = same_machine
        self._errors: tuple[type[Exception], ...] = (
            RuntimeError,
            *(one for one in vars(bindings).values() if isinstance(one, type) and issubclass(one, Exception)),
        )
        self._regions: list[tuple[Any, np.ndarray]] = []
        """What is registered, and what keeps the mapping alive until the agent is gone."""
        name = f"asyncrl-{secrets.token_hex(8)}"
        with self._failing("no NIXL agent"), _devices(same_machine):
            self._agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
        if "UCX" not in self._agent.backends:
            raise UnavailableError("no NIXL agent: its UCX backend is missing")

    def lend(self, paths: Mapping[str, str]) -> dict[str, LentMemory]:
        """Let others read these files, while this agent lives. Raises `UnavailableError`."""
        views = {kind: self._map(path) for kind, path in paths.items()}
        with self._failing("no metadata"):
            metadata = self._agent.get_agent_metadata()
        return {
            kind: LentMemory(metadata, view.ctypes.data, view.nbytes, self.same_machine)
            for kind, view in views.items()
        }

    def read(
        self, lent: LentMemory, path: Path, deadline: float, stall_s: float, stopped: Callable[[], bool]
    ) -> None:
        """Read what is lent into the file `path` of the same size. Raises `UnavailableError`.

        deadline: by the monotonic clock. stall_s: for each piece.
        """
        target = self._map(path)
        if target.nbytes != lent.num_bytes:
            raise UnavailableError(f"{path} has {target.nbytes} bytes, {lent.num_bytes} are lent")
        with self._failing("no connection"):
            peer = self._agent.add_remote_agent(lent.metadata)
        for start in range(0, lent.num_bytes, PIECE_BYTES):
            if stopped():
                raise UnavailableError("given up for another version")
            place = target[start : start + PIECE_BYTES]
            limit = min(deadline, time.monotonic() + stall_s)
            with self._failing(f"bytes {start} to {start + place.nbytes}"):
                self._read_piece(peer, lent.address + start, place, limit)

    def close(self) -> None:
        """Disconnect, and give all memory back. A transfer that goes on is cut off."""
        # In this order: nothing may write to a mapping that is gone.
        del self._agent
        self._regions.clear()

    def _read_piece(self, peer: str, address: int, place: np.ndarray, limit: float) -> None:
        own = self._agent.get_xfer_descs([(place.ctypes.data, place.nbytes, 0)], mem_type="DRAM")
        theirs = self._agent.get_xfer_descs([(address, place.nbytes, 0)], mem_type="DRAM")
        handle = self._agent.initialize_xfer("READ", own, theirs, peer)
        try:
            state = self._agent.transfer(handle)
            while state not in ("DONE", "ERR"):
                if time.monotonic() >= limit:
                    raise UnavailableError("the one that lends them gives nothing")
                time.sleep(LOOK_S)
                state = self._agent.check_xfer_state(handle)
        finally:
            # One that cannot be cancelled ends with the agent.
            with contextlib.suppress(*self._errors):
                self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise UnavailableError("the transfer failed")

    def _map(self, path: str | Path) -> np.ndarray:
        """Map a file and register it. Raises `UnavailableError`."""
        try:
            # Writable also where it is only read: RDMA registers no other mapping for all it may do.
            with open(path, "r+b") as file:
                view = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise UnavailableError(f"{path} cannot be mapped: {error}") from error
        with self._failing(f"{path} cannot be registered"):
            found = self._agent.register_memory([(view.ctypes.data, view.nbytes, 0, "")], mem_type="DRAM")
        self._regions.append((found, view))
        return view

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except UnavailableError as error:
            raise UnavailableError(f"{what}: {error}") from error
        except self._errors as error:
            raise UnavailableError(f"{what}: {type(error).__name__}: {error}") from error


def _library() -> tuple[ModuleType, ModuleType]:
    """Import NIXL. Raises `ConfigError`."""
    check_nixl()
    try:
        api, bindings = importlib.import_module("nixl._api"), importlib.import_module("nixl._bindings")
    except ImportError as error:
        raise ConfigError(f"engine.weight_transfer: nixl cannot be imported: {error}") from error
    if LOG_LEVEL not in os.environ:
        # Else two lines for each version.
        logging.getLogger("nixl").setLevel(logging.WARNING)
    return api, bindings


@contextlib.contextmanager
def _devices(same_machine: bool) -> Iterator[None]:
    """Have what UCX opens meanwhile listen on loopback alone, if that is enough and nothing else is set."""
    if not same_machine or DEVICES in os.environ:
        yield
        return
    os.environ[DEVICES] = LOOPBACK
    try:
        yield
    finally:
        os.environ.pop(DEVICES, None)
