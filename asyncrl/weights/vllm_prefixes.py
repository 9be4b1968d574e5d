"""Keeping the KV cache across an update: running requests keep theirs, and nobody else ever hits it.

What the cache holds was computed by the old weights. vLLM finds cached blocks by hashes of the tokens before them, and
can only forget them all where no request runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncrl.weights.vllm_hooks import Engine, EngineHook

if TYPE_CHECKING:
    from asyncrl.weights.files import WeightFile

FORGET = "asyncrl_forget_prefixes"
"""The method that the plugin adds to vLLM's engine core, and that the server calls while generation is paused."""


class KeptCache(EngineHook):
    """With `keep_kv` in a commit running requests keep what the old weights computed of their tokens, instead of having
    it computed again."""

    def keeps_cache(self, options: Mapping[str, Any]) -> bool:
        """See `EngineHook`."""
        return bool(options.get("keep_kv"))

    async def swapping(self, engine: Engine, file: WeightFile, options: Mapping[str, Any]) -> None:
        """See `EngineHook`."""
        if options.get("keep_kv"):
            await engine.engine_core.call_utility_async(FORGET)


def forget_prefixes(core: Any) -> None:
    """Make all cached blocks unfindable, and those that running requests will fill from now on as well.

    A running request's later blocks depend on its earlier ones, of the old weights: they get hashes that begin with a
    salt of that request. Waiting requests have computed nothing and compute everything anew.
    """
    scheduler = core.scheduler
    make_unfindable(scheduler.kv_cache_manager.block_pool)
    for request in scheduler.requests.values():
        if request.num_computed_tokens:
            request.cache_salt = f"{request.cache_salt or ''}/{request.request_id}"
            request.block_hashes.clear()
            request.update_block_hashes()


def make_unfindable(pool: Any) -> None:
    """Let no request find any block of vLLM's pool in the prefix cache, also not those in use."""
    from vllm.v1.core.block_pool import BlockHashToBlockMap

    pool.cached_block_hash_to_block = BlockHashToBlockMap()
    pool.cached_block_hashes_by_block.clear()
    for block in pool.blocks:
        block.reset_hash()


def add_to_engine_core() -> None:
    """Let the server call `forget_prefixes` in vLLM's engine process."""
    from vllm.v1.engine.core import EngineCore

    setattr(EngineCore, FORGET, forget_prefixes)
