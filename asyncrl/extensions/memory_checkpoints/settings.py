"""The setting of checkpoints in memory, a key of `[train]`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from asyncrl.config_sections import Section, Seldom, TrainConfig


class MemoryConfig(Section):
    """A key of `[train]`."""

    memory_checkpoint_every: Seldom[int] = Field(0, ge=0)
    """Steps between checkpoints in the memory of the trainer's machines, from which it resumes when a rank dies or a
    machine other than the head is lost; 0 for none (docs/reliability.md)."""

    @property
    def kept_states(self) -> Mapping[str, float]:
        """See `TrainConfig`."""
        if not self.memory_checkpoint_every:
            return {}
        assert isinstance(self, TrainConfig)
        # Of what a machine's ranks train, and of what the machine before it does, the newest and the one being written.
        return {"memory_checkpoint_every": 2 * min(1.0, 2 / self.num_machines)}
