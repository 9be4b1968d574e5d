"""An engine's side of the collective transport, in the server's process: it directs what the workers receive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from asyncrl.weights.collective import GroupPlace
from asyncrl.weights.files import WeightFile
from asyncrl.weights.staging import Staging

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.25
"""Pauses between two questions to the workers, which answer between two decoding steps."""


class Transfers:
    """Joins groups and receives weight files, while the engine decodes. `staging`: where the files go."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._devices: list[str] = []
        self._group = ""

    async def expect(self, engine: AsyncLLM, file: WeightFile) -> dict[str, Any]:
        """Make room for a file; return its path, the workers' devices and their group. Raises `InputError`."""
        if not self._devices:
            self._devices = await engine.collective_rpc("weights_device")
        path = await asyncio.to_thread(self._staging.make_room, file)
        return {"path": str(path), "devices": self._devices, "group": self._group}

    async def join(self, engine: AsyncLLM, place: GroupPlace) -> dict[str, Any]:
        """Enter a group and leave any other; return why that failed, "" if it did not."""
        self._group = ""
        await engine.collective_rpc("weights_join", args=(asdict(place),))
        error = await self._ended(engine, 2 * place.timeout_s)
        self._group = "" if error else place.name
        return {"error": error}

    async def receive(
        self, engine: AsyncLLM, file: WeightFile, limit_s: float, delta: bool
    ) -> dict[str, Any]:
        """Receive a file for which there is room, or its delta; return why that failed, "" if it did not."""
        path = self._staging.make_room(file, for_delta=True) if delta else self._staging.path(file)
        await engine.collective_rpc("weights_receive", args=(str(path),))
        error = await self._ended(engine, limit_s)
        if error:
            self._group = ""
            self._staging.drop(file)
        return {"error": error}

    async def _ended(self, engine: AsyncLLM, limit_s: float) -> str:
        """Wait until all workers have ended what they began; return the first error."""
        deadline, pause_s = time.monotonic() + limit_s, FIRST_LOOK_S
        while True:
            progress = await engine.collective_rpc("weights_progress")
            if error := next((error for _, error in progress if error), ""):
                return str(error)
            if all(ended for ended, _ in progress):
                return ""
            if time.monotonic() >= deadline:
                return f"not done within {limit_s:g} s"
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)
