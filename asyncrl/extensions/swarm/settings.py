"""The settings of rollouts that runs share, `[swarm]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from asyncrl.config_sections import PATH, Section, Seldom, empty_or_url


class SwarmConfig(Section):
    """Rollouts that runs share with each other, each training a policy of its own (docs/scaling.md)."""

    url: Seldom[str] = ""
    """Address of `asyncrl serve swarm`; empty shares nothing."""
    token_file: Seldom[Annotated[str, PATH]] = ""
    """File with the service's token, a copy of its `swarm-token`; by default the run's own token is used."""
    groups: Seldom[int] = Field(4, ge=0, le=1024)
    """External groups that a step trains beside its `buffer.groups_per_step` own ones, as far as there are any."""
    share: Seldom[float] = Field(1.0, ge=0, le=1)
    """Share of the run's trained groups that others get; groups whose rewards do not differ are left out."""
    max_age: Seldom[int] = Field(8, ge=0)
    """Versions of this run after which an external group that has come is no longer trained."""
    max_reward: Seldom[float] = Field(10.0, gt=0)
    """External groups in which any reward has a larger absolute value are refused."""

    _check_url = field_validator("url")(empty_or_url)
