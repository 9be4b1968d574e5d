"""Combinations of settings that nobody has run."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.table import value_at


def untried(config: Config) -> list[str]:
    """Return the combinations of a configuration that nobody has run: no reason is known why they should not work."""
    stages, policies = config.engine.pipeline_parallel > 1, bool(config.policies)
    pairs = {
        "lora.rank with engine.pipeline_parallel": config.lora.rank > 0 and stages,
        "engine.kv_offload_gib with engine.pipeline_parallel": config.engine.kv_offload_gib > 0 and stages,
        "engine.speculative.method with engine.pipeline_parallel": (
            value_at(config, "engine.speculative.method") != "off" and stages
        ),
        "policies with train.tensor_parallel": policies and config.train.tensor_parallel > 1,
        "policies with train.old_policy='interrupt'": policies and config.train.old_policy == "interrupt",
    }
    return [f"{pair} has not been tried" for pair, given in pairs.items() if given]
