"""An engine's side of weights by NIXL.

`weights/read` a `WeightFile`, `order` (a `ReadOrder`) -> it is read, or why it was not
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncrl.extensions.nixl.reads import Reads, read_order_from_json
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.vllm_hooks import Engine, EngineHook, Route

if TYPE_CHECKING:
    from asyncrl.weights.vllm_served import Served


class NixlWeights(EngineHook):
    """Reads versions into the staging folder."""

    def __init__(self, policy: Served) -> None:
        super().__init__(policy)
        self.reads = Reads(policy.staging)

    def routes(self) -> dict[str, Route]:
        """See `EngineHook`."""
        return {"weights/read": self._read}

    async def _read(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        file = weight_file_from_json(body)
        return await self.reads.read(file, read_order_from_json(body["order"], file))
