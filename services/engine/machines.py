"""One engine whose ranks are on several machines: what vLLM is told of them.

Machine 0 has the server; each other one only workers, which meet those of the first over torch.distributed and get
their work from its scheduler (vLLM's own multi-node mode).
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.endpoint import interface_to, route_to
from asyncrl.weights.vllm_plugin import MACHINE, MACHINES, RANKS_HERE


@dataclass(frozen=True, slots=True)
class MachineShare:
    """The part of an engine that is on one machine. `nodes`: its machines, over which the ranks are spread evenly;
    `number`: of this one; `main_address`, `main_port`: of machine 0, where the ranks meet."""

    nodes: int = 1
    number: int = 0
    main_address: str = ""
    main_port: int = 0

    @property
    def follows(self) -> bool:
        """True where the engine's server is on another machine."""
        return self.number > 0


def machine_arguments(share: MachineShare) -> list[str]:
    """Return vLLM's arguments for an engine over several machines; none for one machine."""
    if share.nodes == 1:
        return []
    return [
        *("--nnodes", str(share.nodes), "--node-rank", str(share.number)),
        *("--master-addr", share.main_address, "--master-port", str(share.main_port)),
        # By default vLLM takes Ray where it finds it.
        *("--distributed-executor-backend", "mp"),
        *(("--headless",) if share.follows else ()),
    ]


def machine_variables(share: MachineShare, ranks: int) -> dict[str, str]:
    """Return the variables that tell its processes of their place; none for one machine. ranks: of the engine."""
    if share.nodes == 1:
        return {}
    return {
        MACHINES: str(share.nodes),
        MACHINE: str(share.number),
        RANKS_HERE: str(ranks // share.nodes),
    }


def network_variables(share: MachineShare) -> dict[str, str]:
    """Return the variables that name the network to the first machine, unless the user has named another; none for one
    machine. Raises `ConfigError`."""
    if share.nodes == 1:
        return {}
    interface = interface_to(share.main_address)
    # Else vLLM takes the address of the default route, and gloo that of the machine's name, often loopback.
    return {
        "VLLM_HOST_IP": route_to(share.main_address),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
    }
