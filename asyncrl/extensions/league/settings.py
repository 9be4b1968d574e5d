"""The settings of opponents, `[opponents]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from asyncrl.config_sections import PolicyConfig, Section, Seldom


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


class ExploiterConfig(Section):
    """Keys of `[policies.NAME]`, for a policy that is trained against the recipe's own alone."""

    exploits: Seldom[int] = Field(0, ge=0)
    """Above 0 instead of `agents`: the policy is trained against the recipe's own alone, joins the population of
    opponents when it beats that, after so many of its versions at the latest, and starts again (docs/opponents.md)."""
    minimax: Seldom[bool] = False
    """Reward the turns of an exploiter by how little the critic of the recipe's own policy expects of the state that it
    is left in (docs/opponents.md)."""

    @property
    def needs_agents(self) -> bool:
        """See `PolicyConfig`."""
        return self.exploits == 0

    @property
    def implied(self) -> Mapping[str, Mapping[str, Any]]:
        """See `PolicyConfig`. Episodes that the game rewards alike differ for the critic."""
        return {"buffer": {"drop_no_signal": False}} if self.minimax else {}


def exploiters(policies: Mapping[str, PolicyConfig]) -> dict[str, ExploiterConfig]:
    """Return the policies that are trained against the recipe's own alone, by name."""
    found = {name: as_exploiter(policy) for name, policy in policies.items()}
    return {name: policy for name, policy in found.items() if policy.exploits}


def as_exploiter(policy: PolicyConfig) -> ExploiterConfig:
    """Return a policy as what has these keys, which each has."""
    assert isinstance(policy, ExploiterConfig)
    return policy
