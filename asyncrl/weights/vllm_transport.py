"""Publishing through vLLM's own device transports, `nccl` and `ipc`, for trainers and engines on GPUs.

vLLM's trainer-side engine moves the tensors; this module adds the version, the pause around the swap and the
deadline. It serves one engine, since vLLM's handshake gives every worker one rank in one group. The versions and
pauses are those of `FilePublisher`, so a run looks the same with every transport.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from asyncrl.errors import ConfigError
from asyncrl.weights.publish import PublishReport

Weights = Callable[[], Iterator[tuple[str, torch.Tensor]]]


class VersionedClient(HTTPVLLMWeightSyncClient):
    """vLLM's client, extended by the version at the end of an update and by a bearer token."""

    version = 0

    def __init__(self, base_url: str, timeout: float, token: str) -> None:
        super().__init__(base_url, timeout)
        self._headers = {"Authorization": f"Bearer {token}"}

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        requests.post(
            f"{self.base_url}/{path}", json=json, timeout=self.timeout, headers=self._headers
        ).raise_for_status()

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        super().finish_weight_update(weight_version or str(self.version))

    def pause(self) -> None:
        """Freeze running requests; they continue after `resume`."""
        self._post("pause?mode=keep")

    def resume(self) -> None:
        self._post("resume")


class TrainerWeights(WeightSource):
    """The trainer's weights in the form vLLM's transports read; gathered one tensor at a time under ZeRO-3."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._metadata: list[ParamMeta] | None = None

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of every tensor, collected in one pass and kept."""
        if self._metadata is None:
            self._metadata = [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self._weights()]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._weights()


class DevicePublisher:
    """Publishes over `nccl` (different GPUs) or `ipc` (the same GPU). Call `publish` on every rank."""

    def __init__(
        self,
        backend: str,
        urls: list[str],
        weights: Weights,
        rank: int,
        timeout_s: float = 300.0,
        token: str = "",
    ) -> None:
        if len(urls) != 1:
            raise ConfigError(
                f"engine.weight_transfer: {backend!r} serves one engine, got engine.count={len(urls)}; "
                "use 'shared_file' for several"
            )
        self.backend = backend
        self.rank = rank
        self.client = VersionedClient(urls[0], timeout_s, token)
        self.source = TrainerWeights(weights)
        self._engine: Any = None

    def publish(self, version: int, engine: object = None) -> PublishReport:
        """Send the current weights as `version`."""
        if self._engine is None:
            self._engine = WeightTransferTrainerFactory.trainer_init(
                self._init_info(), client=self.client, source=self.source
            )
        start = time.perf_counter()
        self.client.version = version
        if self.rank == 0:
            self.client.pause()
        try:
            self._engine.send_weights()
        finally:
            if self.rank == 0:
                self.client.resume()
        elapsed_s = time.perf_counter() - start
        return PublishReport(version, write_s=elapsed_s, pause_s=[elapsed_s] if self.rank == 0 else [])

    def close(self) -> None:
        """Release the transport."""
        if self._engine is not None:
            self._engine.shutdown()

    def _init_info(self) -> Any:
        if self.backend == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            return IPCTrainerInitInfo(rank=self.rank)
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        return NCCLTrainerInitInfo(master_address="127.0.0.1", master_port=port, world_size=2, rank=self.rank)
