"""The settings of processes that are added and retired, `[scale]`."""

from __future__ import annotations

from pydantic import Field, field_validator

from asyncrl.config_sections import Section, Seldom


class ScaleConfig(Section):
    """How many processes of a role the run may have, as `[least, most]`; the buffer's pressure decides
    (docs/scaling.md). A role that is left out keeps the number it starts with."""

    rollout: Seldom[list[int]] = Field(default_factory=list)
    """Limits of `rollout.workers`, which is where it starts, such as `[1, 4]`. A worker then takes its share of the
    groups in flight by the upper limit."""
    env: Seldom[list[int]] = Field(default_factory=list)
    """Limits of `env.services`."""
    engine: Seldom[list[int]] = Field(default_factory=list)
    """Limits of `engine.count`. GPUs for the upper limit are set aside from the start."""
    cooldown_s: Seldom[float] = Field(60.0, gt=0)
    """Least seconds between two changes; what was observed since the last one, over at least so long, decides."""

    @field_validator("rollout", "env", "engine")
    @classmethod
    def _limits(cls, value: list[int]) -> list[int]:
        if value and not (len(value) == 2 and 1 <= value[0] <= value[1]):
            raise ValueError("must be [least, most] with 1 <= least <= most, or left out")
        return value

    @property
    def numbers(self) -> dict[str, tuple[int, int]]:
        """See `Section`."""
        given = {"rollout": self.rollout, "env": self.env, "engine": self.engine}
        return {role: (value[0], value[1]) for role, value in given.items() if value}
