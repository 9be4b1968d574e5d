"""The settings of a reward for length, `[length]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class LengthConfig(Section):
    """How the number of tokens that an episode samples enters its reward."""

    mode: Literal["off", "exact", "max", "adaptive"] = "off"
    """Whether the task asks for a number of tokens and the distance from it is subtracted (exact), or asks for that
    many at most (max), or every token costs more the more of the group succeed (adaptive) (docs/rewards.md)."""
    least_target: Seldom[int] = Field(100, ge=1)
    """The fewest tokens that a task asks for."""
    most_target: Seldom[int] = Field(4000, ge=1)
    """The most tokens that a task asks for; each group draws its number between the two."""
    alpha: Seldom[float] = Field(0.0003, gt=0, le=1)
    """What a token of the distance is worth (exact, max)."""
    delta: Seldom[float] = Field(0.5, ge=0, le=1)
    """Share of the reward that is left for just as many tokens as were asked for (max)."""
    weight: Seldom[float] = Field(0.2, gt=0)
    """What an answer as long as the context costs where the whole group succeeds (adaptive)."""

    @property
    def targets(self) -> bool:
        """Whether tasks ask for a number of tokens."""
        return self.mode in ("exact", "max")
