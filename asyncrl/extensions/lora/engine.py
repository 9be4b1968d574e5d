"""What an engine needs to serve the adapters of a run."""

from __future__ import annotations

import json

from asyncrl.config import Config
from asyncrl.extensions.lora.peft_form import buffer_rank
from asyncrl.services.engine.additions import MOST_ADAPTERS, MOST_LOADED, Addition

ADAPTER_VERSIONS = 2
"""Versions of each adapter that are decoded at once; requests for another one wait."""
LORA, POLICIES = "ASYNCRL_LORA", "ASYNCRL_POLICIES"
"""Environment variables: the run's adapter as JSON, and those of further policies by their names."""


def serving_adapters(config: Config, publishes: bool) -> Addition:
    """Return what engines have in addition that a run brings adapters; without that the model is served as it is."""
    if not publishes:
        return Addition()
    others = config.co_served_policies
    served = [config.lora, *others.values()]
    modules = dict.fromkeys(module for lora in served for module in lora.target_modules)
    return Addition(
        (
            *("--enable-lora", "--max-lora-rank", str(max(buffer_rank(lora.rank) for lora in served))),
            *("--lora-target-modules", *modules),
        ),
        {
            LORA: config.lora.model_dump_json(),
            POLICIES: json.dumps({name: lora.model_dump() for name, lora in others.items()}),
        },
        # The newest version of each policy stays loaded with those in use, and briefly the one before it.
        {MOST_ADAPTERS: ADAPTER_VERSIONS * len(served), MOST_LOADED: (ADAPTER_VERSIONS + 2) * len(served)},
    )
