"""An engine's side of weights over HTTP: what it fetches in the background, and what it offers to other engines.

`weights/fetch`   a `WeightFile`, `order` (a `FetchOrder`) -> it is fetched in the background
`weights/fetched` a `WeightFile` -> how much of it has come, whether that has ended, and any error
`GET weights/bytes/EPOCH/VERSION/KIND` one range of a weight file, for other engines
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.credentials import authorization, bearer
from asyncrl.extensions.http_weights.fetches import Fetches, fetch_order_from_json
from asyncrl.extensions.http_weights.offered import Offered, send_range
from asyncrl.weights.chunks import WHOLE, short_kinds
from asyncrl.weights.position import weight_file_from_json
from asyncrl.weights.vllm_hooks import Engine, EngineHook, Route

if TYPE_CHECKING:
    from asyncrl.weights.vllm_served import Served


class HttpWeights(EngineHook):
    """Fetches versions and offers them. An engine's other machines fetch from here, whatever the transport."""

    raw_route = re.compile(rf"weights/bytes/(\d+)/(\d+)/({'|'.join((WHOLE, *short_kinds()))})")

    def __init__(self, policy: Served) -> None:
        super().__init__(policy)
        self.fetches = Fetches(policy.staging, authorization(bearer(None, "weights")))

    def routes(self) -> dict[str, Route]:
        """See `EngineHook`."""
        return {"weights/fetch": self._fetch, "weights/fetched": self._fetched}

    async def answer_raw(self, wanted: re.Match[str], scope: Any, receive: Any, send: Any) -> None:
        """See `EngineHook`."""
        find = functools.partial(self.offered, int(wanted[1]), int(wanted[2]), wanted[3])
        await send_range(find, scope, receive, send)

    def offered(self, epoch: int, version: int, kind: str) -> Offered | None:
        """Return what other engines may fetch from this one of a version; None of one it neither has nor fetches."""
        if (found := self.fetches.find(epoch, version, kind)) is not None:
            return found
        for file in (self.policy.prepared, self.policy.position.file):
            if file is not None and kind == WHOLE and (file.epoch, file.version) == (epoch, version):
                return Offered(Path(file.path)) if Path(file.path).is_file() else None
        return None

    async def _fetch(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        await self.fetches.begin(weight_file_from_json(body), fetch_order_from_json(body["order"]))
        return {}

    async def _fetched(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        return await self.fetches.progress(weight_file_from_json(body))
