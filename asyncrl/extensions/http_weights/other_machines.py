"""The further machines of an engine: each gets a copy of what the server has verified, whatever the transport.

They fetch it from the server (`asyncrl.extensions.http_weights.machine_copies`).
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Any

from asyncrl.errors import UnavailableError
from asyncrl.extensions.http_weights.machine_copies import copy_limit_s
from asyncrl.extensions.http_weights.worker import COPY, ROOM, job_name
from asyncrl.weights.chunks import chunks_of
from asyncrl.weights.files import WeightFile
from asyncrl.weights.vllm_hooks import Engine, EngineHook
from asyncrl.weights.vllm_plugin import ENGINE_URL
from asyncrl.weights.vllm_workers import all_ended


class OtherMachines(EngineHook):
    """Has the first worker of each machine make room, fetch and remove files."""

    async def made_room(self, engine: Engine, file: WeightFile) -> dict[str, Any]:
        """See `EngineHook`. A group brings the bytes to all machines."""
        await engine.collective_rpc("weights_room", args=(file.to_json(),))
        await self._ended(engine, file, ROOM)
        return {}

    async def verified(self, engine: Engine, file: WeightFile) -> None:
        """See `EngineHook`. All machines have a verified copy afterwards."""
        chunks = asdict(await asyncio.to_thread(chunks_of, file.path))
        server = os.environ[ENGINE_URL]
        await engine.collective_rpc("weights_copy", args=(file.to_json(), chunks, server))
        await self._ended(engine, file, COPY)

    async def about_to_load(self, engine: Engine, file: WeightFile) -> None:
        """See `EngineHook`. A commit of other weights, since these were verified, has removed the copies of these."""
        if not all(await engine.collective_rpc("weights_there", args=(file.to_json(),))):
            raise UnavailableError(
                f"weights of version {file.version} are no longer on all machines of the engine; prepare them again"
            )

    async def committed(self, engine: Engine, file: WeightFile) -> None:
        """See `EngineHook`. Only the copy that is loaded stays."""
        await engine.collective_rpc("weights_keep_only", args=(file.to_json(),))

    async def _ended(self, engine: Engine, file: WeightFile, kind: str) -> None:
        if error := await all_ended(engine, copy_limit_s(file), "weights_copied", job_name(kind, file)):
            raise UnavailableError(
                f"weights of version {file.version} on another machine of the engine: {error}"
            )
