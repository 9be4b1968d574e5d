"""How verified weights get into an engine: the loader of a policy, and the one that replaces all weights."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from asyncrl.errors import UnavailableError
from asyncrl.weights.files import WeightFile
from asyncrl.weights.vllm_hooks import Engine, having

if TYPE_CHECKING:
    from asyncrl.weights.vllm_served import Served

log = logging.getLogger("asyncrl.weights")

PauseMode = Literal["keep", "wait"]
"""What running requests do while generation is paused: freeze, or finish first."""


def base_version() -> int:
    """Version of the weights the server started with."""
    return int(os.environ.get("ASYNCRL_BASE_VERSION", "0"))


def parse_version(label: str) -> int:
    """Turn vLLM's version label into ours; it is "default" until the first update."""
    return base_version() if label == "default" else int(label)


class Loader(Protocol):
    """Gets the weights of one policy into the engine."""

    async def newest(self, engine: Engine) -> int:
        """Return the newest version served."""

    async def load(
        self, engine: Engine, file: WeightFile, mode: PauseMode, options: Mapping[str, Any]
    ) -> float:
        """Load a verified file and move the policy's position; return the seconds the engine was busy.

        options: the commit's body. Raises `InputError`, `UnavailableError`; the weights served before then go on.
        """


class Swap:
    """Replaces the engine's weights between two decoding steps."""

    def __init__(self, policy: Served) -> None:
        self.policy = policy

    async def newest(self, engine: Engine) -> int:
        """See `Loader`."""
        return parse_version(await engine.get_weight_version())

    async def load(
        self, engine: Engine, file: WeightFile, mode: PauseMode, options: Mapping[str, Any]
    ) -> float:
        """See `Loader`. An engine that fails in the middle ends."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        hooks = self.policy.hooks
        kept = [hook.keeps_cache(options) for hook in having(hooks, "keeps_cache")]
        paused = [since for hook in hooks if (since := hook.paused_since()) is not None]
        start = min(paused, default=time.perf_counter())
        await pause(engine, mode, clear_cache=not any(kept))
        try:
            for hook in having(hooks, "swapping"):
                await hook.swapping(engine, file, options)
            await engine.start_weight_update()
            where = {"path": file.path, "epoch": file.epoch, "version": file.version}
            request = WeightTransferUpdateRequest(update_info=where)
            await engine.update_weights(request)
            await engine.finish_weight_update(weight_version=str(file.version))
        except Exception:
            # Some tensors may be new and some old: nothing may be sampled from them. The process that watches this
            # one restarts it, and it catches up.
            log.exception("weights of version %d were loaded in part; the engine ends", file.version)
            os._exit(1)
        self.policy.position.moved(file)
        for hook in hooks:
            hook.swapped()
        await engine.resume_generation()
        return time.perf_counter() - start


async def pause(engine: Engine, mode: PauseMode, clear_cache: bool) -> None:
    """Pause generation. Raises `UnavailableError` where vLLM cannot empty its cache; the old weights then go on."""
    try:
        await engine.pause_generation(mode=mode, clear_cache=clear_cache)
    except Exception as error:
        await engine.resume_generation()
        raise UnavailableError(f"the engine cannot be paused now: {error}") from error
