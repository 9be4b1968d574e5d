"""The settings of opponents, `[opponents]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class OpponentsConfig(Section):
    """Past versions of the policy as opponents in two-player games (docs/opponents.md)."""

    fixed: ClassVar[bool] = True
    of_further_policies: ClassVar[Mapping[str, Any]] = {"choose": "off"}

    choose: Seldom[Literal["off", "uniform", "prioritised"]] = "off"
    """off: the policy plays all agents, and all are trained. Otherwise a past version plays one side of some groups:
    all of the population alike, or those more often that the policy seldom beats."""
    every: Seldom[int] = Field(5, ge=1)
    """Versions between those that join the population."""
    size: Seldom[int] = Field(4, ge=1, le=32)
    """Past versions in the population, the newest ones."""
    self_play: Seldom[float] = Field(0.5, ge=0, le=1)
    """Share of groups in which the policy plays itself."""
    power: Seldom[float] = Field(2.0, ge=0)
    """With prioritised, a version's weight is (1 - win rate against it) to this power."""
