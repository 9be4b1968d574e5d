"""The trainer's side of deltas: each version is also written as what changed since the one before."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asyncrl.extensions.weight_deltas.files import DELTA, write_delta
from asyncrl.weights.files import WeightFile
from asyncrl.weights.transport import EngineControl, Transport

log = logging.getLogger("asyncrl.weights")


class WithDeltas(Transport):
    """Adds deltas to the files of another transport, for engines that have loaded the version before."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.brings = transport.brings

    def written(self, file: WeightFile, before: WeightFile | None) -> WeightFile:
        """See `Transport`."""
        file = self.transport.written(file, before)
        if before is None or before.version != file.version - 1:
            return file
        path = Path(file.path).with_suffix(f".{DELTA}")
        try:
            delta = write_delta(before.path, before.checksum, file.path, path)
        except OSError as error:
            log.warning("version %d has no delta: %s", file.version, error)
            return file
        return file if delta is None else replace(file, forms={**file.forms, DELTA: delta})

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """See `Transport`."""
        return await self.transport.carry(file, engines)

    def close(self) -> None:
        """See `Transport`."""
        self.transport.close()
