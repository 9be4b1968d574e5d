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

from asyncrl.weights.collective import Group, GroupPlace, device_name, own_stream, receive_file
from asyncrl.weights.vllm_commitments import Chunk, states_of

log = logging.getLogger("asyncrl.weights")


class _Background:
    """One transfer at a time, in a thread. A newer one leaves an older behind, which ends by its own deadline."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.running: threading.Thread | None = None
        self.error = ""

    def begin(self, job: Callable[[], None]) -> None:
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


class WeightReceiver:
    """Methods for `collective_rpc`; arguments are plain numbers and text."""

    device: torch.device
    vllm_config: Any
    model_runner: Any

    def commitments_take(self, key: str, num_tokens: int) -> list[Chunk]:
        """Return what was recorded of the hidden states of a request's tokens."""
        return states_of(self.model_runner).take(key, num_tokens)

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

    def weights_receive(self, path: str) -> None:
        """Begin to receive a file together with the engine's other workers."""
        state: _Background = self.__dict__["_weights"]
        parallel = self.vllm_config.parallel_config
        part, parts = self._weights_rank(), parallel.world_size * parallel.data_parallel_size

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
        ended = state.running is not None and not state.running.is_alive()
        return ended, state.error

    def _weights_rank(self) -> int:
        parallel = self.vllm_config.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)
