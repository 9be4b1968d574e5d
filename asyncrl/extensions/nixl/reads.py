"""An engine's side of weights by NIXL: it reads the memory that the trainer lends, into a file of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import AsyncRLError, InputError
from asyncrl.extensions.nixl.agent import Agent, LentMemory, lent_memory_from_json
from asyncrl.weights.chunks import WHOLE
from asyncrl.weights.files import WeightFile
from asyncrl.weights.staging import Staging


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What the trainer tells an engine to read."""

    kind: str
    """`chunks.WHOLE`, or one of `chunks.short_kinds`."""
    lent: LentMemory
    limit_s: float
    """For all of it."""
    stall_s: float
    """For each piece."""


def read_order_from_json(body: Mapping[str, Any], file: WeightFile) -> ReadOrder:
    """Read an order for a version. Raises KeyError, TypeError, ValueError, also where it does not fit the version."""
    order = ReadOrder(
        str(body["kind"]), lent_memory_from_json(body["lent"]), float(body["limit_s"]), float(body["stall_s"])
    )
    sizes = {kind: file.source(kind)[1] for kind in (WHOLE, *file.forms)}
    if sizes.get(order.kind) != order.lent.num_bytes:
        raise ValueError(f"{order.lent.num_bytes} bytes are lent of {order.kind!r}, the version has {sizes}")
    return order


class Reads:
    """One version at a time; a newer order ends an older one. staging: where it goes."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._stop = threading.Event()
        self._one_at_a_time = asyncio.Lock()

    async def read(self, file: WeightFile, order: ReadOrder) -> dict[str, Any]:
        """Read a version, while the engine decodes; return why that failed, "" if it did not. Raises `InputError`."""
        self._stop.set()
        stop = self._stop = threading.Event()
        deadline = time.monotonic() + order.limit_s
        async with self._one_at_a_time:
            return {"error": await asyncio.to_thread(self._read, file, order, deadline, stop)}

    def _read(self, file: WeightFile, order: ReadOrder, deadline: float, stop: threading.Event) -> str:
        path = self._staging.incomplete_path(file, order.kind)
        # Not the same file again: an earlier reader may not have let go of it yet.
        path.unlink(missing_ok=True)
        try:
            self._staging.new_room(file, order.kind, order.lent.num_bytes)
            agent = Agent(order.lent.same_machine)
            try:
                agent.read(order.lent, path, deadline, order.stall_s, stop.is_set)
            finally:
                agent.close()
        except InputError:
            raise
        except AsyncRLError as error:
            path.unlink(missing_ok=True)
            return str(error)
        if order.kind == WHOLE:
            self._staging.drop_short(file)
        os.replace(path, self._staging.complete_path(file, order.kind))
        return ""
