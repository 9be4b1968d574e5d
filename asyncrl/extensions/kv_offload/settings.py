"""The setting of the tier in host memory, a key of `[engine]`."""

from __future__ import annotations

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class KvOffloadConfig(Section):
    """A key of `[engine]`."""

    kv_offload_gib: Seldom[float] = Field(0.0, ge=0)
    """GiB of host memory in which an engine keeps blocks of its KV cache that no longer fit its GPU, emptied with each
    new version; 0 keeps none. For GPUs alone (docs/engine-and-trainer.md)."""
