"""What a job on a cluster asks of its machines, from the recipe: memory of the host and room for the run folder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from asyncrl.algo.settings import resolve_settings
from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.planning.architectures import architecture
from asyncrl.extensions.planning.model_size import model_size
from asyncrl.launch.cluster import Request
from asyncrl.launch.models.weights_folder import kept_states
from asyncrl.run.checkpoints import KEPT_CHECKPOINTS

GIB = 2**30
STATE_BYTES = 12
"""The bytes of a trained weight in a checkpoint: its float32 master and two moments."""
ADAPTER = 0.02
"""Share of the weights that an adapter has, at most."""
VERSIONS = 3
"""Published versions that are in shared memory at once, at most."""
RECORDS_GIB = 20
"""Trajectories, metrics and logs of a long run."""
PROCESS_GIB = 12
"""The memory of an engine or a rank of the trainer: libraries, its caches, batches."""


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The needs of one machine, and of the run's folder, which is on the head."""

    memory_gib: int
    storage_gib: int
    shared_memory_gib: int
    """In /dev/shm, of the memory."""


def job_needs(config: Config, gpus: int) -> JobNeeds:
    """Return what machines with `gpus` GPUs each need for a recipe.

    Raises `ConfigError` for a model whose shape is not known.
    """
    memory = shared = storage = 0.0
    for name in config.policy_names:
        policy = config.policy(name)
        element = 2 if policy.model.dtype == "bfloat16" else 4
        weights = element * _parameters(policy)
        published = weights * (ADAPTER if policy.lora.rank else 1)
        state = STATE_BYTES * _parameters(policy) * (ADAPTER if policy.lora.rank else 1)
        if resolve_settings(policy.algo)["value"].get("trunk") == "own":
            state *= 2
        shared += VERSIONS * published
        # The model is read while the trainer loads it, and gathered while it is written.
        memory += VERSIONS * published + 2 * weights + kept_states(policy, int(state))
        memory += state if policy.train.offload != "none" and not policy.train.offload_folder else 0
        storage += (KEPT_CHECKPOINTS + 1) * (weights + state)
    return JobNeeds(
        _rounded(memory / GIB + PROCESS_GIB * (gpus + 1), 8),
        _rounded(storage / GIB + RECORDS_GIB, 10),
        _rounded(shared / GIB, 1),
    )


def with_sizes(config: Config, request: Request) -> Request:
    """Return what a run asks of a cluster with the sizes that its recipe needs; as it was where the model's shape is
    not known."""
    try:
        needs = job_needs(config, request.gpus)
    except ConfigError:
        return request
    return replace(request, memory_gib=needs.memory_gib, storage_gib=needs.storage_gib)


def _parameters(config: Config) -> int:
    if config.model.path == "sft":
        return 0  # the tiny base model
    return model_size(architecture(config, "model.path", config.model.path)).parameters


def _rounded(gib: float, step: int) -> int:
    return int(-(-gib // step) * step)
