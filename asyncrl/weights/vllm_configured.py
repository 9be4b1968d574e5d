"""What a server serves and which capabilities it has, as `asyncrl.services.engine` has configured it.

Nothing is imported of a capability that is not asked for. Transports are always there, since the trainer says by which
of them it brings a file, which may be one of the user's own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from asyncrl.extensions.table import Row, merged, rows
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.folders import policy_weights
from asyncrl.weights.vllm_addresses import Addresses
from asyncrl.weights.vllm_hooks import EngineHook
from asyncrl.weights.vllm_plugin import WEIGHTS_DIR
from asyncrl.weights.vllm_served import Served
from asyncrl.weights.vllm_swap import Loader, Swap

CORE = (Row(path="asyncrl.weights.vllm_prefixes:KeptCache", place=30),)
CAPABILITIES = merged("engine_hooks", CORE)
"""In the order in which the hooks are called. What asks for one is the environment."""


def hooks_of(env: Mapping[str, str] = os.environ) -> list[Callable[[Served], EngineHook]]:
    """Return what makes the hooks of a policy, all but its loader."""
    return [one.load() for one in CAPABILITIES if one.wanted(env)]


def served_from_environment(env: Mapping[str, str] = os.environ) -> Addresses:
    """Return what this server serves."""
    folder, committing, hooks = env.get(WEIGHTS_DIR, ""), asyncio.Lock(), hooks_of(env)
    loaders: dict[str, Callable[[Served], Loader]] = {MAIN_POLICY: Swap}
    for row in rows("policy_loaders"):
        if row.wanted(env):
            loaders |= row.load()(env)
    places = {name: folder if name == MAIN_POLICY else policy_weights(folder, name) for name in loaders}
    return Addresses(
        {name: Served(name, places[name], committing, hooks, loader) for name, loader in loaders.items()}
    )
