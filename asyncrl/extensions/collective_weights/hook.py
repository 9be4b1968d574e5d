"""An engine's side of weights over a group: its workers join one and receive files, while the engine decodes.

`weights/expect`  says besides which devices the workers have and which group they are in
`weights/join`    a `GroupPlace` -> the workers are in that group
`weights/receive` a `WeightFile`, `limit_s`, `kind` -> that kind of the file is received
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from asyncrl.extensions.collective_weights.group import GroupPlace
from asyncrl.weights.chunks import WHOLE
from asyncrl.weights.files import WeightFile
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.vllm_hooks import Engine, EngineHook, Route
from asyncrl.weights.vllm_workers import all_ended

if TYPE_CHECKING:
    from asyncrl.weights.vllm_served import Served

PROGRESS = "weights_progress"


class CollectiveWeights(EngineHook):
    """Has the engine's workers receive (`worker`)."""

    def __init__(self, policy: Served) -> None:
        super().__init__(policy)
        self._devices: list[str] = []
        self._group = ""

    def routes(self) -> dict[str, Route]:
        """See `EngineHook`."""
        return {"weights/join": self._join, "weights/receive": self._receive}

    async def made_room(self, engine: Engine, file: WeightFile) -> dict[str, Any]:
        """See `EngineHook`."""
        if not self._devices:
            self._devices = await engine.collective_rpc("weights_device")
        return {"devices": self._devices, "group": self._group}

    async def _join(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        """Enter a group and leave any other; return why that failed, "" if it did not."""
        place = GroupPlace(**body)
        self._group = ""
        await engine.collective_rpc("weights_join", args=(asdict(place),))
        error = await all_ended(engine, 2 * place.timeout_s, PROGRESS)
        self._group = "" if error else place.name
        return {"error": error}

    async def _receive(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        """Receive a file for which there is room, or a short form; return why that failed, "" if it did not."""
        file, staging, kind = weight_file_from_json(body), self.policy.staging, str(body["kind"])
        path = staging.path(file) if kind == WHOLE else staging.make_room(file, kind)
        await engine.collective_rpc("weights_receive", args=(file.to_json(), str(path)))
        error = await all_ended(engine, float(body["limit_s"]), PROGRESS)
        if error:
            self._group = ""
            staging.drop(file)
        return {"error": error}
