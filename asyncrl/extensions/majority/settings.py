"""The settings of a reward by majority, `[majority]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class MajorityConfig(Section):
    """A reward for the answer that most episodes of a group give, for tasks without right answers."""

    mode: Literal["off", "replace", "add"] = "off"
    """Whether agreement with the majority is the reward, or is added to the environment's (docs/rewards.md)."""
    weight: Seldom[float] = 1.0
    """What agreement is worth."""
    least_share: Seldom[float] = Field(0.0, ge=0.0, le=1.0)
    """Share of a group's episodes that must give the most frequent answer; with fewer nobody is rewarded."""
