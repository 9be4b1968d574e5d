"""Engines that fetch, verify and offer weights as real ones do, over real HTTP, without vLLM's model."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

from fastapi import FastAPI
from torch import Tensor

from asyncrl.http_checks import Hosts
from asyncrl.services.http.serving import serve
from asyncrl.types import MAIN_POLICY
from asyncrl.weights import vllm_routes
from asyncrl.weights.files import WeightFile, read_weights
from asyncrl.weights.vllm_addresses import Addresses
from asyncrl.weights.vllm_configured import hooks_of
from asyncrl.weights.vllm_served import Served

START_S = 60.0


class Loading(Served):
    """An engine's policy that only reads what it would load."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MAIN_POLICY, str(folder), asyncio.Lock(), hooks_of({}))
        self.loaded: dict[int, dict[str, Tensor]] = {}

    async def _load(self, engine: Any, file: WeightFile, *how: Any) -> dict[str, Any]:
        self.loaded[file.version] = dict(read_weights(file.path))
        self.position.moved(file)
        return {"version": file.version, "pause_s": 0.0}


class LoadingEngine:
    """The routes of an engine on a socket at `url`, until `close`.

    folder: of its weights, which no other one sees unless it is given another `process`, the number of one that runs.
    """

    def __init__(self, folder: Path, process: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with mock.patch("asyncrl.weights.staging.os.getpid", return_value=process or os.getpid()):
            self.policy = Loading(folder)
        self._app = FastAPI()
        self._app.state.hosts, self._app.state.failure, self._app.state.stopping = (
            Hosts(),
            None,
            asyncio.Event(),
        )
        self._app.state.engine_client = None
        self._app.add_middleware(vllm_routes.Routes)
        with (
            mock.patch.object(
                vllm_routes, "served_from_environment", return_value=Addresses({MAIN_POLICY: self.policy})
            ),
            # Of this process's own use of vLLM.
            mock.patch.object(vllm_routes, "enable_envs_cache"),
        ):
            self._app.middleware_stack = self._app.build_middleware_stack()
        started = threading.Event()
        self.url = ""

        def serving(url: str) -> None:
            self.url = url
            started.set()

        self._thread = threading.Thread(target=serve, args=(self._app,), kwargs={"serving": serving})
        self._thread.start()
        if not started.wait(START_S):
            raise TimeoutError(f"an engine does not serve within {START_S:g} s")

    def close(self) -> None:
        self._app.state.request_exit()
        self._thread.join(START_S)
