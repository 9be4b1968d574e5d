"""Whether the nodes of a run have room for its weights, in shared memory mostly, asked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.messages import Register
from asyncrl.extensions.machines.spread import TRAINER, Spread
from asyncrl.launch.machines.placement import prefixed
from asyncrl.launch.models.weights_folder import checkpoint_copies
from asyncrl.weights.folders import STAGED_COPIES, has_own_copies, published_bytes


def check_rooms(config: Config, found: Spread, nodes: Sequence[Register], models: Mapping[str, str]) -> None:
    """Raise `ConfigError`, naming the node, if weights do not fit on one. models: of all policies, by name."""
    needed = needed_rooms(config, found, models)
    for node in nodes:
        wanted = needed.get(node.name, 0)
        if wanted > node.room:
            raise ConfigError(
                f"engine.weights_dir: node {node.name} has room for {node.room / 2**30:.2f} GiB in {node.weights_in}, "
                f"and what runs there needs {wanted / 2**30:.2f} GiB, copies of the weights; name a folder with more "
                "room, or enlarge it (docker run --shm-size)"
            )


def needed_rooms(config: Config, found: Spread, models: Mapping[str, str]) -> dict[str, int]:
    """Return the bytes that each machine keeps in its folder of weights, by name, without the published versions, which
    are on the head alone. Of a model whose files are not at hand nothing is known."""
    needed: dict[str, int] = {}
    for policy, model in models.items():
        own = config.policy(policy)
        # Adapters are small.
        one = 0 if own.lora.rank else published_bytes(Path(model), own.model.dtype)
        # The engines of a machine share their copies.
        copies = STAGED_COPIES if has_own_copies(own) else 0
        engines = [name for name in found.processes if name.startswith(f"{prefixed(policy, 'engine')}-")]
        for machine in _machines(found, engines):
            needed[machine] = needed.get(machine, 0) + copies * one
        for machine in _machines(found, [prefixed(policy, TRAINER)]):
            needed[machine] = needed.get(machine, 0) + checkpoint_copies(own) * one
    return needed


def _machines(found: Spread, names: Sequence[str]) -> set[str]:
    return {place.machine for name in names for place in found.parts(name)}
