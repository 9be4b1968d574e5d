"""What every worker of an engine can do beside its own work: join a group and receive a weight file in the background.

vLLM mixes `WeightReceiver` into its worker class (`--worker-extension-cls`). Its methods return at once, since the
engine decodes between two calls; `weights_progress` tells whether what was begun has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from asyncrl.weights.chunks import Chunks
from asyncrl.weights.machine_copies import copies_of_machine, fetch_copy
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.transports.collective.group import (
    Group,
    GroupPlace,
    device_name,
    own_stream,
    receive_file,
)

log = logging.getLogger("asyncrl.weights")


class _Background:
    """One transfer at a time, in a thread. A newer one leaves an older behind, which ends by its own deadline."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.key: Any = None
        """What tells the transfer apart from others."""
        self.running: threading.Thread | None = None
        self.error = ""

    def begin(self, job: Callable[[], object]) -> None:
        self.error = ""

        def run() -> None:
            error = ""
            try:
                job()
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            if self.running is threading.current_thread():
                self.error = error

        self.running = threading.Thread(target=run, name="weights", daemon=True)
        self.running.start()

    @property
    def ended(self) -> bool:
        """True when nothing runs."""
        return self.running is None or not self.running.is_alive()


class WeightReceiver:
    """Methods for `collective_rpc`; arguments are plain numbers and text."""

    device: torch.device
    vllm_config: Any

    def weights_device(self) -> str:
        """Return what tells this worker's device apart from others."""
        return device_name(self.device)

    def weights_join(self, place: dict[str, Any]) -> None:
        """Begin to join a group; `rank` is that of the engine's first worker."""
        earlier: _Background | None = self.__dict__.get("_weights")
        state = self.__dict__["_weights"] = _Background()
        own = GroupPlace(**(place | {"rank": place["rank"] + self._weights_rank()}))

        def join() -> None:
            if earlier is not None and earlier.group is not None:
                earlier.group.abort()
            with own_stream(self.device):
                state.group = Group(own, self.device)

        state.begin(join)

    def weights_receive(self, file: dict[str, Any], path: str) -> None:
        """Begin to receive a file together with the other workers of this machine. path: where, on the server's."""
        state: _Background = self.__dict__["_weights"]
        copies = copies_of_machine()
        if copies is not None:
            path = str(copies.path(weight_file_from_json(file)))
        parts = self._workers_here()
        part = self._weights_rank() % parts

        def receive() -> None:
            if state.group is None:
                raise RuntimeError("this worker is in no group")
            try:
                with own_stream(self.device):
                    receive_file(state.group, path, part, parts)
            except Exception:
                # The others would otherwise wait for their deadlines.
                state.group.abort()
                raise

        state.begin(receive)

    def weights_progress(self) -> tuple[bool, str]:
        """Return whether what was begun has ended, and the reason it failed for, if any."""
        state: _Background = self.__dict__["_weights"]
        return state.running is not None and state.ended, state.error

    def weights_room(self, file: dict[str, Any]) -> None:
        """Begin to make room for a file on this machine, where the server does not; `weights_copied` tells the end."""
        copies, wanted = copies_of_machine(), weight_file_from_json(file)
        if copies is not None:
            self._on_machine(("room", wanted.checksum), lambda: copies.make_room(wanted))

    def weights_copy(self, file: dict[str, Any], chunks: dict[str, Any], server: str) -> None:
        """Begin to fetch a file that the engine's server has verified, where that is on another machine."""
        copies, wanted = copies_of_machine(), weight_file_from_json(file)
        if copies is not None:
            self._on_machine(
                ("copy", wanted.checksum), lambda: fetch_copy(wanted, Chunks(**chunks), server, copies)
            )

    def weights_copied(self) -> tuple[bool, str]:
        """Return whether what this machine was to have is there, and the reason it is not, if any."""
        state: _Background | None = self.__dict__.get("_copy")
        return (True, "") if state is None else (state.ended, state.error)

    def weights_keep_only(self, file: dict[str, Any]) -> None:
        """Remove this machine's copies of other versions."""
        copies = copies_of_machine()
        if copies is not None and self._leads_machine:
            copies.keep_only(weight_file_from_json(file))

    def _on_machine(self, key: Any, job: Callable[[], object]) -> None:
        """Begin a job once a machine, unless it is running."""
        state: _Background = self.__dict__.setdefault("_copy", _Background())
        if self._leads_machine and (state.ended or state.key != key):
            state.key = key
            state.begin(job)

    @property
    def _leads_machine(self) -> bool:
        return self._weights_rank() % self._workers_here() == 0

    def _workers_here(self) -> int:
        """Return how many of the engine's workers share this machine's file."""
        parallel = self.vllm_config.parallel_config
        return int(parallel.world_size * parallel.data_parallel_size // parallel.nnodes)

    def _weights_rank(self) -> int:
        parallel = self.vllm_config.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)


def add_call(name: str, call: Callable[..., Any]) -> None:
    """Have every worker of this process answer `collective_rpc` for a name, by a function of it and the arguments."""
    setattr(WeightReceiver, name, call)
