"""What a server serves and which capabilities it has, as `asyncrl.services.engine` has configured it.

Nothing is imported of a capability that is not asked for. Transports are always there, since the trainer says by which
of them it brings a file, which may be one of the user's own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from asyncrl.config_sections import LoraConfig
from asyncrl.extensions.table import Row, merged
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.folders import policy_weights
from asyncrl.weights.vllm_addresses import Addresses
from asyncrl.weights.vllm_hooks import EngineHook
from asyncrl.weights.vllm_plugin import WEIGHTS_DIR
from asyncrl.weights.vllm_served import Served
from asyncrl.weights.vllm_swap import Loader, Swap

if TYPE_CHECKING:
    from asyncrl.weights.vllm_adapters import Adapters

LORA, POLICIES = "ASYNCRL_LORA", "ASYNCRL_POLICIES"
"""Environment variables: the run's adapter as JSON, and those of further policies by their names."""


CORE = (Row(path="asyncrl.weights.vllm_prefixes:KeptCache", place=30),)
CAPABILITIES = merged("engine_hooks", CORE)
"""In the order in which the hooks are called. What asks for one is the environment."""


def hooks_of(env: Mapping[str, str] = os.environ) -> list[Callable[[Served], EngineHook]]:
    """Return what makes the hooks of a policy, all but its loader."""
    return [one.load() for one in CAPABILITIES if one.wanted(env)]


def served_from_environment(env: Mapping[str, str] = os.environ) -> Addresses:
    """Return what this server serves."""
    folder, own = env.get(WEIGHTS_DIR, ""), env.get(LORA, "")
    committing, ids, hooks = asyncio.Lock(), itertools.count(1), hooks_of(env)
    loader: Callable[[Served], Loader] = _adapters(LoraConfig.model_validate_json(own), ids) if own else Swap
    served = {MAIN_POLICY: Served(MAIN_POLICY, folder, committing, hooks, loader)}
    for name, settings in json.loads(env.get(POLICIES) or "{}").items():
        adapters = _adapters(LoraConfig.model_validate(settings), ids)
        served[name] = Served(name, policy_weights(folder, name), committing, hooks, adapters)
    return Addresses(served)


def _adapters(lora: LoraConfig, ids: Iterator[int]) -> Callable[[Served], Adapters]:
    from asyncrl.weights.vllm_adapters import Adapters

    return lambda policy: Adapters(policy, lora, ids)
