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
from typing import TYPE_CHECKING, NamedTuple

from asyncrl.config_sections import LoraConfig
from asyncrl.import_path import load_object
from asyncrl.weights.folders import policy_weights
from asyncrl.weights.vllm_addresses import Addresses
from asyncrl.weights.vllm_hooks import EngineHook
from asyncrl.weights.vllm_plugin import MACHINES, RECORD_EXPERTS, RECORD_STATES, WEIGHTS_DIR
from asyncrl.weights.vllm_sampled import KEEP_SAMPLED
from asyncrl.weights.vllm_served import Served
from asyncrl.weights.vllm_swap import Loader, Swap

if TYPE_CHECKING:
    from asyncrl.weights.vllm_adapters import Adapters

LORA, POLICIES = "ASYNCRL_LORA", "ASYNCRL_POLICIES"
"""Environment variables: the run's adapter as JSON, and those of further policies by their names."""


class Capability(NamedTuple):
    """One that has a hook."""

    asked: Callable[[Mapping[str, str]], bool]
    """Whether the environment asks for it."""
    hook: str
    """The import path of its `EngineHook`."""


def _always(env: Mapping[str, str]) -> bool:
    return True


CAPABILITIES = (
    Capability(_always, "asyncrl.weights.transports.delta.engine:Deltas"),
    Capability(_always, "asyncrl.weights.transports.collective.engine:CollectiveWeights"),
    Capability(_always, "asyncrl.weights.transports.http.engine:HttpWeights"),
    Capability(_always, "asyncrl.weights.transports.nixl.engine:NixlWeights"),
    Capability(lambda env: int(env.get(MACHINES) or 1) > 1, "asyncrl.weights.vllm_machines:OtherMachines"),
    Capability(_always, "asyncrl.weights.vllm_prefixes:KeptCache"),
    Capability(lambda env: KEEP_SAMPLED in env, "asyncrl.weights.vllm_interruptions:Interruptions"),
    Capability(_always, "asyncrl.weights.vllm_sleep:Sleep"),
    Capability(_always, "asyncrl.weights.vllm_images:Images"),
    Capability(_always, "asyncrl.weights.vllm_speculation:Speculation"),
    Capability(lambda env: RECORD_STATES in env, "asyncrl.weights.vllm_commitments:Commitments"),
    Capability(lambda env: RECORD_EXPERTS in env, "asyncrl.weights.vllm_experts:RecordedExperts"),
)
"""In the order in which the hooks are called."""


def hooks_of(env: Mapping[str, str] = os.environ) -> list[Callable[[Served], EngineHook]]:
    """Return what makes the hooks of a policy, all but its loader."""
    return [load_object("engine", one.hook) for one in CAPABILITIES if one.asked(env)]


def served_from_environment(env: Mapping[str, str] = os.environ) -> Addresses:
    """Return what this server serves."""
    folder, own = env.get(WEIGHTS_DIR, ""), env.get(LORA, "")
    committing, ids, hooks = asyncio.Lock(), itertools.count(1), hooks_of(env)
    loader: Callable[[Served], Loader] = _adapters(LoraConfig.model_validate_json(own), ids) if own else Swap
    served = {"": Served("", folder, committing, hooks, loader)}
    for name, settings in json.loads(env.get(POLICIES) or "{}").items():
        adapters = _adapters(LoraConfig.model_validate(settings), ids)
        served[name] = Served(name, policy_weights(folder, name), committing, hooks, adapters)
    return Addresses(served)


def _adapters(lora: LoraConfig, ids: Iterator[int]) -> Callable[[Served], Adapters]:
    from asyncrl.weights.vllm_adapters import Adapters

    return lambda policy: Adapters(policy, lora, ids)
