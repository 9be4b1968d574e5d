"""The settings of runs over several machines, keys of sections of the core."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class EngineMachines(Section):
    """A key of `[engine]`."""

    nodes: Seldom[int] = Field(1, ge=1)
    """Machines over which one engine is spread evenly, for a model that is too large for one: in runs of several
    machines, and a divisor of `tensor_parallel` times `pipeline_parallel` (docs/scaling.md)."""

    @property
    def num_machines(self) -> int:
        """See `EngineConfig`."""
        return self.nodes


class TrainerMachines(Section):
    """Keys of `[train]`."""

    nodes: Seldom[int] = Field(1, ge=1)
    """Machines over which the ranks are spread evenly (docs/scaling.md)."""
    min_nodes: Seldom[int] = Field(1, ge=1)
    """Machines with which the trainer goes on, with fewer ranks, when another was lost and `run.node_timeout_s` later
    none has taken its place. From the first checkpoint after one has, it uses `nodes` again."""

    @property
    def num_machines(self) -> int:
        """See `TrainConfig`."""
        return self.nodes


class BufferMachine(Section):
    """A key of `[buffer]`."""

    machine: Seldom[Literal["head", "node"]] = "head"
    """Where the buffer is in a run over several machines. On a node, the head has all that it acknowledges, and
    the loss of the node loses nothing (docs/reliability.md)."""

    @property
    def may_move(self) -> bool:
        """See `BufferConfig`."""
        return self.machine == "node"


class RayConfig(Section):
    """A key of `[placement]`."""

    ray: Seldom[
        dict[Literal["engine", "env", "rollout", "trainer"], dict[str, Annotated[float, Field(gt=0)]]]
    ] = Field(default_factory=dict)
    """With `--on ray` what each process of a role asks Ray for, beside a CPU and its GPUs, such as `{ engine = {
    "accelerator_type:H100" = 0.001 } }`; CPU and GPU may be among it."""
