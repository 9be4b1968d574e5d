"""An engine's side of deltas: it makes a new version from the one that is loaded."""

from __future__ import annotations

import asyncio
import logging

from asyncrl.errors import InputError
from asyncrl.extensions.weight_deltas.files import DELTA, apply_delta
from asyncrl.weights.files import WeightFile
from asyncrl.weights.vllm_hooks import EngineHook

log = logging.getLogger("asyncrl.weights")

LEAST_MAKING_S = 10.0
SLOWEST_MADE_BYTES_PER_S = 200e6


def making_limit_s(file: WeightFile) -> float:
    """Return how long another engine may take to make a version before it is taken for stuck."""
    return LEAST_MAKING_S + file.num_bytes / SLOWEST_MADE_BYTES_PER_S


class Deltas(EngineHook):
    """Makes a copy of new weights from those that are loaded, if there is a delta for these and no copy yet."""

    async def before_prepare(self, file: WeightFile) -> None:
        """See `EngineHook`."""
        await asyncio.to_thread(self._make, file)

    def _make(self, file: WeightFile) -> None:
        staging, base = self.policy.staging, self.policy.position.file
        received = staging.complete_path(file, DELTA)
        there = received.is_file() or staging.local(file) is None
        if base is None or file.kind_for(base.checksum) != DELTA or not there:
            return
        try:
            delta = str(received) if received.is_file() else self.policy.below_folder(file.source(DELTA)[0])
            with staging.making(making_limit_s(file)):
                # Another engine of this machine may have made it while this one waited.
                if not staging.adopt(file):
                    apply_delta(base.path, delta, staging.make_room(file))
            received.unlink(missing_ok=True)
        except (InputError, OSError) as error:
            log.warning("no use of the delta of version %d: %s", file.version, error)
            staging.drop(file)
