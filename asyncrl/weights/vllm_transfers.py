"""What an engine's server has its workers do with weight files: receive them over a group, and copy them to machines.

The first is the engine's side of the collective transport. The second is for an engine over several machines, whatever
the transport: the others fetch from the server what it has verified (`asyncrl.weights.machine_copies`).
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from asyncrl.errors import UnavailableError
from asyncrl.weights.chunks import chunks_of
from asyncrl.weights.collective import GroupPlace
from asyncrl.weights.files import WeightFile
from asyncrl.weights.machine_copies import copy_limit_s, machines
from asyncrl.weights.staging import Staging
from asyncrl.weights.vllm_plugin import ENGINE_URL

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.25
"""Pauses between two questions to the workers, which answer between two decoding steps."""


class Transfers:
    """Joins groups and receives weight files, while the engine decodes. `staging`: where the files go."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._machines = machines()
        self._devices: list[str] = []
        self._group = ""

    async def expect(self, engine: AsyncLLM, file: WeightFile) -> dict[str, Any]:
        """Make room for a file; return its path, the workers' devices and their group. Raises `InputError`."""
        if not self._devices:
            self._devices = await engine.collective_rpc("weights_device")
        path = await asyncio.to_thread(self._staging.make_room, file)
        if self._machines > 1:
            await engine.collective_rpc("weights_room", args=(file.to_json(),))
            await self._copied(engine, file)
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
        await engine.collective_rpc("weights_receive", args=(file.to_json(), str(path)))
        error = await self._ended(engine, limit_s)
        if error:
            self._group = ""
            self._staging.drop(file)
        return {"error": error}

    async def copy_to_machines(self, engine: AsyncLLM, file: WeightFile) -> None:
        """Have each further machine of the engine get a copy of a file that is verified here; do nothing without any.

        Raises `UnavailableError`.
        """
        if self._machines == 1:
            return
        chunks = asdict(await asyncio.to_thread(chunks_of, file.path))
        server = os.environ[ENGINE_URL]
        await engine.collective_rpc("weights_copy", args=(file.to_json(), chunks, server))
        await self._copied(engine, file)

    async def keep_only(self, engine: AsyncLLM, file: WeightFile) -> None:
        """Remove all copies but those of `file`, which is loaded."""
        self._staging.keep_only(file)
        if self._machines > 1:
            await engine.collective_rpc("weights_keep_only", args=(file.to_json(),))

    async def _copied(self, engine: AsyncLLM, file: WeightFile) -> None:
        if error := await self._ended(engine, copy_limit_s(file), "weights_copied"):
            raise UnavailableError(
                f"weights of version {file.version} on another machine of the engine: {error}"
            )

    async def _ended(self, engine: AsyncLLM, limit_s: float, asked: str = "weights_progress") -> str:
        """Wait until all workers have ended what they began; return the first error."""
        deadline, pause_s = time.monotonic() + limit_s, FIRST_LOOK_S
        while True:
            progress = await engine.collective_rpc(asked)
            if error := next((error for _, error in progress if error), ""):
                return str(error)
            if all(ended for ended, _ in progress):
                return ""
            if time.monotonic() >= deadline:
                return f"not done within {limit_s:g} s"
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)
